#include "plan/emit.h"

#include <algorithm>

#include "base/check.h"
#include "ops/op_table.h"
#include "ops/opaque.h"
#include "plan/delay.h"

namespace coda {
namespace {

std::string fresh(std::set<std::string>& taken, const std::string& wish) {
  std::string name = wish;
  for (int i = 2; !taken.insert(name).second; ++i) name = fmt::format("{}_{}", wish, i);
  return name;
}

}  // namespace

/// attention's log-sum-exp and the gradient of a table stay fp32.
DType result_dtype(const Graph& graph, const Node& proj, DType dtype) {
  const Opaque opaque = graph.node(proj.in[0]).attrs.opaque;
  const bool f32 = (opaque == Opaque::attention && proj.attrs.index == 1) ||
                   opaque == Opaque::embedding_backward;
  return f32 ? DType::f32 : dtype;
}

PlanBuilder::PlanBuilder(const Graph& graph, const CompileOptions& options,
                         std::vector<OutputSlot> slots, const std::vector<const Partition*>& phases,
                         std::map<NodeId, double> constants)
    : graph_(graph), options_(options), slots_(std::move(slots)), constants_(std::move(constants)) {
  for (NodeId v = 0; v < graph.size(); ++v)
    if (graph.node(v).op == Op::input) names_.insert(graph.node(v).name);
  for (const OutputSlot& slot : slots_) {
    const Node& node = graph.node(slot.node);
    names_.insert(slot.name);
    slot_buffers_.push_back(add_buffer({.name = slot.name,
                                        .role = slot.role,
                                        .kind = node.type.kind,
                                        .dtype = slot.dtype,
                                        .rows = node.type.rows,
                                        .cols = node.type.cols}));
  }
  for (const Partition* phase : phases) name_operands(*phase);
  for (const Partition* phase : phases)
    for (const Unit& unit : phase->units)
      for (const UnitStore& store : unit.stores)
        if (store.slot < 0 && is_tile(graph.node(store.value))) rounded_.insert(store.value);
}

/// Nameless operands of GEMMs are named after the weights: in_W is multiplied with W^T, dz_W with
/// W.
void PlanBuilder::name_operands(const Partition& partition) {
  constexpr std::size_t kLongest = 40;
  for (const Unit& unit : partition.units) {
    if (unit.kind != UnitKind::gemm) continue;
    const Node& node = graph_.node(unit.node);
    if (node.attrs.transpose_a) continue;
    const Node& b = graph_.node(node.in[1]);
    std::string name = node.attrs.transpose_b ? "in" : "dz";
    for (const NodeId block : b.op == Op::cat_rows ? b.in : std::vector<NodeId>{node.in[1]})
      if (name.size() + graph_.node(block).name.size() < kLongest)
        name += "_" + graph_.node(block).name;
    hints_.emplace(node.in[0], name);
  }
}

std::int32_t PlanBuilder::add_buffer(Buffer buffer) {
  plan_.buffers.push_back(std::move(buffer));
  return static_cast<std::int32_t>(plan_.buffers.size()) - 1;
}

std::string PlanBuilder::unique_name(const std::string& wish) { return fresh(names_, wish); }

std::string PlanBuilder::unique_program_name(const std::string& wish) {
  return fresh(program_names_, wish);
}

std::string PlanBuilder::name_of_node(NodeId v) const {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].node == v) return slots_[i].name;
  const Node& node = graph_.node(v);
  if (!node.name.empty()) return node.name;
  if (node.op == Op::proj)
    return std::string(row_of(graph_.node(node.in[0]).attrs.opaque)
                           .outputs[static_cast<std::size_t>(node.attrs.index)]);
  const auto hint = hints_.find(v);
  if (hint != hints_.end()) return hint->second;
  return fmt::format("{}_{}", coda::name_of(node.op), v);
}

DType PlanBuilder::storage_dtype(NodeId v) const {
  const Node& node = graph_.node(v);
  if (node.op == Op::input) return node.type.dtype;
  if (node.op == Op::proj) return result_dtype(graph_, node, options_.dtype);
  return options_.dtype;
}

DType PlanBuilder::rounding_of(NodeId v) const {
  return rounded_.count(v) ? storage_dtype(v) : DType::f32;
}

std::int32_t PlanBuilder::input_buffer(NodeId v) {
  const auto found = own_.find(v);
  if (found != own_.end()) return found->second;
  const Node& node = graph_.node(v);
  const std::int32_t buffer = add_buffer({.name = node.name,
                                          .role = Role::input,
                                          .kind = node.type.kind,
                                          .dtype = node.type.dtype,
                                          .rows = node.type.rows,
                                          .cols = node.type.cols});
  own_[v] = buffer;
  places_[v] = {buffer, 0, 0};
  return buffer;
}

std::int32_t PlanBuilder::own_buffer(NodeId v) {
  const auto found = own_.find(v);
  if (found != own_.end()) return found->second;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].owner && slots_[i].node == v && slots_[i].backward == backward_)
      return own_[v] = slot_buffers_[i];
  const Node& node = graph_.node(v);
  const std::int32_t buffer = add_buffer({.name = unique_name(name_of_node(v)),
                                          .role = Role::scratch,
                                          .kind = node.type.kind,
                                          .dtype = storage_dtype(v),
                                          .rows = node.type.rows,
                                          .cols = node.type.cols});
  return own_[v] = buffer;
}

Place PlanBuilder::place_for(const UnitStore& store, bool copied) {
  Place place{store.slot >= 0 ? slot_buffers_[store.slot] : own_buffer(store.into), store.row,
              store.col};
  if (store.slot < 0) {
    if (!copied) places_.emplace(store.value, place);
    if (store.into != store.value) places_.emplace(store.into, Place{place.buffer, 0, 0});
  }
  return place;
}

Place PlanBuilder::locate(NodeId v) {
  const auto found = places_.find(v);
  if (found != places_.end()) return found->second;
  const Node& node = graph_.node(v);
  if (node.op == Op::input) return {input_buffer(v), 0, 0};
  internal_check(node.op == Op::cols || node.op == Op::rows, "emit: value {} ({}) is not in memory",
                 v, name_of(node.op));
  Place place = locate(node.in[0]);
  (node.op == Op::cols ? place.col : place.row) += node.attrs.lo;
  return place;
}

const std::vector<std::int32_t>& PlanBuilder::vector_buffers(NodeId v) const {
  const auto found = vectors_.find(v);
  internal_check(found != vectors_.end(), "emit: vector {} ({}) is not in memory", v,
                 name_of(graph_.node(v).op));
  return found->second;
}

std::int32_t PlanBuilder::add_vector_buffer(NodeId v, Buffer buffer) {
  buffer.name = unique_name(name_of_node(v));
  const std::int32_t index = add_buffer(std::move(buffer));
  vectors_[v].push_back(index);
  return index;
}

void PlanBuilder::add_opaque(const Unit& unit, std::vector<Step>& steps) {
  const Node& node = graph_.node(unit.node);
  Step step;
  step.opaque = node.attrs.opaque;
  step.attrs = node.attrs;
  const auto slice_of = [&](NodeId v) {
    const Type& type = graph_.node(v).type;
    if (is_reduction(graph_.node(v).op)) {
      const auto& buffers = vector_buffers(v);
      internal_check(buffers.size() == 1 && !plan_.buffers[buffers[0]].partial,
                     "emit: an opaque node reads an unfinished reduction");
      return Slice{buffers[0], 0, 0, type.rows, type.cols};
    }
    const Place place = locate(v);
    return Slice{place.buffer, place.row, place.col, type.rows, type.cols};
  };
  for (const NodeId operand : node.in) step.slices.push_back(slice_of(operand));
  step.n_inputs = static_cast<std::int32_t>(step.slices.size());
  const OpaqueRow& row = row_of(node.attrs.opaque);
  for (std::size_t i = 0; i < row.outputs.size(); ++i) {
    NodeId result = kNoNode;
    for (NodeId v = unit.node + 1; v < graph_.size() && result == kNoNode; ++v)
      if (graph_.node(v).op == Op::proj && graph_.node(v).in[0] == unit.node &&
          graph_.node(v).attrs.index == static_cast<std::int32_t>(i))
        result = v;
    internal_check(result != kNoNode, "emit: result {} of {} has no node", i, row.name);
    const std::int32_t buffer = own_buffer(result);
    places_.emplace(result, Place{buffer, 0, 0});
    step.slices.push_back(slice_of(result));
  }
  step.note = fmt::format("{} has a kernel of its own", row.name);
  steps.push_back(std::move(step));
}

void PlanBuilder::add_steps(const Partition& partition) {
  auto& steps = backward_ ? plan_.backward : plan_.forward;
  for (const Unit& unit : partition.units) {
    if (unit.kind == UnitKind::opaque)
      add_opaque(unit, steps);
    else
      steps.push_back(emit_unit(*this, unit, backward_ ? "backward" : "forward"));
  }
}

void PlanBuilder::add_forward(const Partition& partition) { add_steps(partition); }

void PlanBuilder::add_backward(const Partition& partition, const std::vector<NodeId>& saved) {
  backward_ = true;
  const auto stays = [&](NodeId v) {
    return graph_.node(v).op == Op::input || std::binary_search(saved.begin(), saved.end(), v);
  };
  // Saved slices of something stored whole keep their place.
  for (const NodeId v : saved)
    if (is_tile(graph_.node(v))) places_.emplace(v, locate(v));
  std::erase_if(places_, [&](const auto& entry) { return !stays(entry.first); });
  std::erase_if(own_, [&](const auto& entry) { return !stays(entry.first); });
  std::erase_if(vectors_, [&](const auto& entry) { return !stays(entry.first); });
  add_steps(partition);
}

Plan PlanBuilder::finish() {
  set_lifetimes(plan_);
  const auto forward_steps = static_cast<std::int32_t>(plan_.forward.size());
  for (Buffer& buffer : plan_.buffers)
    if (buffer.role == Role::scratch && buffer.first_step < forward_steps &&
        buffer.last_step >= forward_steps)
      buffer.role = Role::saved;
  delay_repeated(plan_);
  return std::move(plan_);
}

}  // namespace coda
