#include "plan/compile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/check.h"
#include "graph/rebuild.h"
#include "graph/rewrite.h"
#include "ops/opaque.h"
#include "plan/emit.h"
#include "plan/join_partials.h"
#include "plan/partition.h"
#include "plan/pieces.h"
#include "plan/saved.h"

namespace coda {
namespace {

class Compiler {
 public:
  Compiler(Graph& graph, const CompileRequest& request, const CompileOptions& options)
      : graph_(graph), request_(request), options_(options) {}

  std::shared_ptr<const Plan> run() {
    check();
    rewrite_forward();
    const Rewritten in_terms = split_lse(graph_, values_);
    add_results();
    phases_.boundary = graph_.size();
    differentiate();
    apply_split(in_terms);
    add_results();
    add_output_slots();
    Split split = choose();
    std::vector<const Partition*> parts{&split.forward};
    if (!backward_roots_.empty()) parts.push_back(&split.backward);
    PlanBuilder builder(graph_, options_, slots_, parts, seeds_);
    builder.add_forward(split.forward);
    if (!backward_roots_.empty()) builder.add_backward(split.backward, split.saved);
    auto plan = std::make_shared<Plan>(builder.finish());
    plan->math = math_;
    plan->rewrites = rewrites_;
    if (options_.pieces > 1 && !backward_roots_.empty()) run_in_pieces(*plan, options_.pieces);
    verify(*plan);
    return plan;
  }

 private:
  void check() const;
  void rewrite_forward();
  void add_results();
  void differentiate();
  void apply_split(const Rewritten& split);
  void add_slot(const std::string& name, NodeId v, DType dtype, bool accumulate, bool may_own,
                bool backward);
  void add_output_slots();
  void add_gradient_slots();
  Split choose();
  std::set<NodeId> forward_tiles(const std::vector<NodeId>& cut) const;
  SavedSearch saved_search() const;
  Split improved(const SavedSearch& search, Split split) const;
  Split with_joined_partials(Split split);
  std::vector<NodeId> stored_anyway(const Partition& forward) const;

  Graph& graph_;
  const CompileRequest& request_;
  const CompileOptions& options_;
  std::vector<NodeId> values_;     // of the outputs, rewritten
  std::vector<NodeId> gradients_;  // of wrt
  Phases phases_;
  std::map<NodeId, double> seeds_;  // inputs that stand for constant cotangents
  std::vector<OutputSlot> slots_;
  std::set<NodeId> owned_;
  std::string math_;
  std::vector<std::string> rewrites_;
  std::vector<Root> forward_roots_, backward_roots_;
};

void Compiler::check() const {
  std::set<std::string> names;
  const auto unique = [&](const std::string& name) {
    if (!names.insert(name).second)
      throw_error<UsageError>(
          "compile: expected unique names of outputs and gradients, got {} twice. Rename one.",
          name);
    const NodeId input = graph_.find_input(name);
    if (input != kNoNode)
      throw_error<UsageError>(
          "compile: {} names an output, expected it to be no input's name as well. Rename one of "
          "the two.",
          name);
  };
  const auto check_dtype = [](DType dtype, const char* what) {
    if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
      throw_error<UsageError>("compile: {}: expected f32, bf16 or f16, got {}.", what,
                              name_of(dtype));
  };
  check_dtype(options_.dtype, "dtype");
  check_dtype(options_.output_dtype, "output_dtype");
  check_dtype(options_.weight_grad_dtype, "weight_grad_dtype");
  if (options_.accumulate_weight_grads && options_.weight_grad_dtype != DType::f32)
    throw_error<UsageError>(
        "compile: weight_grad_dtype: expected f32 for gradients that are accumulated, got {}. "
        "Leave it at f32.",
        name_of(options_.weight_grad_dtype));
  const auto check_number = [](double value, const char* what, const char* advice) {
    if (!(value >= 0) || !std::isfinite(value))
      throw_error<UsageError>("compile: {}: expected a finite number of 0 or more, got {}. {}",
                              what, value, advice);
  };
  check_number(options_.held_price, "held_price", "0 saves whatever is cheaper to read again.");
  check_number(options_.memory_budget, "memory_budget", "Give bytes, or 0 for none.");
  constexpr std::int32_t kMostPieces = 24;
  if (options_.pieces < 1 || options_.pieces > kMostPieces)
    throw_error<UsageError>(
        "compile: pieces: expected a number of pieces from 1 to {}, got {}. 1 cuts nothing.",
        kMostPieces, options_.pieces);
  if (options_.budget_tokens < 0)
    throw_error<UsageError>(
        "compile: budget_tokens: expected 0 or more, got {}. Give the rows of a typical run.",
        options_.budget_tokens);
  if (options_.accumulate_weight_grads && options_.own_weight_grads)
    throw_error<UsageError>(
        "compile: own_weight_grads: expected gradients that are not accumulated, since the plan's "
        "memory holds other things between backward phases. Ask for one of the two.");
  bool any_cotangent = false;
  for (const Output& output : request_.outputs) {
    if (!output.value || &output.value.graph() != &graph_)
      throw_error<UsageError>("compile: output {}: expected a value of this graph.", output.name);
    if (output.store) unique(output.name);
    if (output.value.type().kind == Kind::list || !is_float(output.value.type().dtype))
      throw_error<UsageError>("compile: output {}: expected floats, got {} of {}.", output.name,
                              name_of(output.value.type().kind),
                              name_of(output.value.type().dtype));
    if (!output.cotangent) continue;
    any_cotangent = true;
    if (&output.cotangent.graph() != &graph_)
      throw_error<UsageError>(
          "compile: output {}: expected a cotangent of this graph, got one of another. Make it "
          "here.",
          output.name);
    const Type value = output.value.type(), cotangent = output.cotangent.type();
    if (value.kind != cotangent.kind || value.rows != cotangent.rows ||
        value.cols != cotangent.cols)
      throw_error<UsageError>(
          "compile: output {}: expected a cotangent of its type, {}, got {}. Make the cotangent "
          "with the kind and extents of the output.",
          output.name, to_string(value), to_string(cotangent));
  }
  std::set<NodeId> seen;
  for (const Tensor& input : request_.wrt) {
    if (!input || &input.graph() != &graph_ || graph_.node(input.id()).op != Op::input)
      throw_error<UsageError>(
          "compile: wrt: expected inputs of this graph, got another value. Gradients are with "
          "respect to inputs.");
    const Node& node = graph_.node(input.id());
    if (!is_float(node.type.dtype) || node.type.kind == Kind::list)
      throw_error<UsageError>("compile: wrt: {}: expected an input of floats, got {}.", node.name,
                              name_of(node.type.dtype));
    if (!seen.insert(input.id()).second)
      throw_error<UsageError>("compile: wrt: expected each input once, got {} twice.", node.name);
    unique("d_" + node.name);
  }
  if (!request_.wrt.empty() && !any_cotangent)
    throw_error<UsageError>(
        "compile: expected a cotangent of an output, since gradients are asked for, got none. Set "
        "Output::cotangent (constant 1 for a scalar loss).");
  bool stores = !request_.wrt.empty();
  for (const Output& output : request_.outputs) stores = stores || output.store;
  if (!stores)
    throw_error<UsageError>("compile: expected an output to store or a gradient, got neither.");
}

void Compiler::rewrite_forward() {
  for (const Output& output : request_.outputs) values_.push_back(output.value.id());
  std::vector<Tensor> roots;
  for (const NodeId v : values_) roots.push_back(graph_.at(v));
  math_ = to_string(graph_, roots);
  const auto apply = [&](const Rewritten& rewritten) {
    for (NodeId& v : values_) v = rewritten[v];
    rewrites_.insert(rewrites_.end(), rewritten.notes.begin(), rewritten.notes.end());
  };
  if (options_.defer) apply(defer(graph_, values_));
  if (options_.merge) apply(merge(graph_, values_));
}

/// Opaque nodes write all their results: each needs a node, whether anything reads it or not.
void Compiler::add_results() {
  for (NodeId v = 0, end = graph_.size(); v < end; ++v) {
    if (graph_.node(v).op != Op::opaque) continue;
    const auto results = row_of(graph_.node(v).attrs.opaque).outputs.size();
    for (std::size_t i = 0; i < results; ++i) {
      Attrs attrs;
      attrs.index = static_cast<std::int32_t>(i);
      graph_.make(Op::proj, {graph_.at(v)}, attrs);
    }
  }
}

void Compiler::differentiate() {
  if (request_.wrt.empty()) return;
  std::vector<Seed> seeds;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!request_.outputs[i].cotangent) continue;
    Tensor cotangent = request_.outputs[i].cotangent;
    const Node& node = graph_.node(cotangent.id());
    if (node.op == Op::constant) {
      // A constant would fold into the gradients, and forward and backward values could no longer
      // be told apart; a scalar nobody binds stands for it until programs are emitted.
      const double value = node.attrs.value;
      cotangent = graph_.scalar(fmt::format("cotangent.{}", value));
      seeds_[cotangent.id()] = value;
    }
    seeds.push_back({graph_.at(values_[i]), cotangent});
    phases_.cotangents.push_back(cotangent.id());
  }
  const std::vector<Tensor> found = gradients(seeds, request_.wrt);
  for (std::size_t i = 0; i < found.size(); ++i) {
    // What no output depends on has gradient zero.
    const Type type = request_.wrt[i].type();
    const Tensor gradient = found[i] ? found[i] : graph_.constant(0);
    gradients_.push_back(broadcast(gradient, type).id());
  }
}

/// What is differentiated has lse in one piece; from here on, both phases have its two terms.
void Compiler::apply_split(const Rewritten& split) {
  const AtomsBelow atoms(graph_, phases_.boundary);
  const Rewritten backward = split_lse(graph_, gradients_, split.map);
  for (NodeId& v : values_) v = split[v];
  for (NodeId& v : gradients_) v = backward[v];
  phases_.forward = values_;
  phases_.backward = gradients_;
  rewrites_.insert(rewrites_.end(), split.notes.begin(), split.notes.end());
}

void Compiler::add_slot(const std::string& name, NodeId v, DType dtype, bool accumulate,
                        bool may_own, bool backward) {
  const Node& node = graph_.node(v);
  const auto slot = static_cast<std::int32_t>(slots_.size());
  // The owner's value is read by other units from the output itself; the rest are copies.
  const bool sliced = node.op == Op::cols && !options_.fuse;
  const bool result = node.op == Op::proj;  // an opaque node writes it, in a type of its own
  const bool kept = result ? dtype == result_dtype(graph_, node, options_.dtype)
                           : node.type.kind == Kind::tile && dtype == options_.dtype;
  const bool owner = may_own && kept && !accumulate && node.op != Op::input &&
                     node.op != Op::cat_cols && !sliced && owned_.insert(v).second;
  slots_.push_back({name, v, dtype, accumulate, owner, backward});
  (backward ? backward_roots_ : forward_roots_).push_back({v, owner ? -1 : slot, owner});
}

void Compiler::add_output_slots() {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!request_.outputs[i].store) continue;
    const bool tile = graph_.node(values_[i]).type.kind == Kind::tile;
    add_slot(request_.outputs[i].name, values_[i], tile ? options_.output_dtype : DType::f32, false,
             true, false);
  }
}

void Compiler::add_gradient_slots() {
  const std::vector<bool> needs_cotangent = depends_on(graph_, phases_.cotangents);
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const NodeId v = gradients_[i];
    const Kind kind = graph_.node(v).type.kind;
    const bool weight = kind == Kind::weight || kind == Kind::row;
    const DType dtype = weight               ? options_.weight_grad_dtype
                        : kind == Kind::tile ? options_.output_dtype
                                             : DType::f32;
    // A gradient that is a forward value may be in memory already: copied.
    add_slot("d_" + graph_.node(request_.wrt[i].id()).name, v, dtype,
             weight && options_.accumulate_weight_grads,
             needs_cotangent[static_cast<std::size_t>(v)], true);
    if (weight && options_.own_weight_grads) slots_.back().role = Role::result;
  }
}

/// Forward values that are in memory whatever backward asks for.
std::vector<NodeId> Compiler::stored_anyway(const Partition& forward) const {
  std::set<NodeId> stored;
  for (NodeId v = 0; v < phases_.boundary; ++v) {
    const Op op = graph_.node(v).op;
    if (op == Op::input || op == Op::proj) stored.insert(v);
  }
  for (const Unit& unit : forward.units) {
    for (const UnitStore& store : unit.stores)
      if (store.slot < 0) stored.insert(store.value), stored.insert(store.into);
    stored.insert(unit.reductions.begin(), unit.reductions.end());
  }
  return {stored.begin(), stored.end()};
}

Split Compiler::choose() {
  const std::vector<NodeId> none;
  SavedSearch forward_only(graph_, options_, forward_roots_, {}, values_, none);
  Split split = forward_only.evaluate(Choice{});
  if (gradients_.empty()) return split;

  const std::vector<NodeId> stored = stored_anyway(split.forward);
  if (options_.recover) {
    const Rewritten recovered = recover(graph_, phases_, stored);
    for (NodeId& v : gradients_) v = recovered[v];
    phases_.backward = gradients_;
    rewrites_.insert(rewrites_.end(), recovered.notes.begin(), recovered.notes.end());
  }
  add_gradient_slots();
  std::vector<double> bytes(static_cast<std::size_t>(graph_.size()));
  for (NodeId v = 0; v < graph_.size(); ++v) {
    const Type& type = graph_.node(v).type;
    const double rows =
        static_cast<double>(type.rows == kTokens ? options_.budget_tokens : type.rows);
    const DType dtype = is_tile(graph_.node(v)) ? options_.dtype : DType::f32;
    bytes[static_cast<std::size_t>(v)] =
        rows * static_cast<double>(type.cols) * static_cast<double>(size_of(dtype));
  }
  const std::set<NodeId> tiles = forward_tiles(min_cut(graph_, phases_, stored, bytes));

  const SavedSearch search = saved_search();
  split = search.evaluate(Choice{.tiles = tiles, .again = {}, .remade = {}});
  internal_check(split.feasible, "compile: the saved values do not suffice for backward");
  if (!options_.fuse) return split;
  if (options_.search) split = improved(search, std::move(split));
  return with_joined_partials(std::move(split));
}

/// The cut may pass through values that only backward asks for, such as softmax(z) for z. Rounded
/// to 16 bits those lose what backward subtracts from them, so what they are made of is kept.
std::set<NodeId> Compiler::forward_tiles(const std::vector<NodeId>& cut) const {
  const std::vector<bool> in_forward = mask_of(graph_, needed_by(graph_, values_));
  std::set<NodeId> tiles, seen;
  std::vector<NodeId> stack(cut.rbegin(), cut.rend());
  while (!stack.empty()) {
    const NodeId v = stack.back();
    stack.pop_back();
    if (!seen.insert(v).second || !is_tile(graph_.node(v))) continue;
    if (graph_.node(v).op == Op::input) continue;
    // A result of an opaque node comes with the others, even if only backward reads it.
    if (in_forward[static_cast<std::size_t>(v)] || graph_.node(v).op == Op::proj)
      tiles.insert(v);
    else
      for (const NodeId u : graph_.node(v).in) stack.push_back(u);
  }
  return tiles;
}

SavedSearch Compiler::saved_search() const {
  return SavedSearch(graph_, options_, forward_roots_, backward_roots_, values_,
                     phases_.cotangents);
}

Split Compiler::improved(const SavedSearch& search, Split split) const {
  if (options_.memory_budget <= 0)
    return search.improve(std::move(split), options_.held_price, options_.recompute_products);
  constexpr double kHighest = 16;
  Split least = search.improve(split, kHighest, false);
  if (least.held > options_.memory_budget)
    return options_.recompute_products ? search.shrink(std::move(least), options_.memory_budget)
                                       : least;
  for (const double price : {0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0}) {
    split = search.improve(std::move(split), price, false);
    if (split.held <= options_.memory_budget) return split;
  }
  return least;
}

/// Kept only if the programs stay what they were.
Split Compiler::with_joined_partials(Split split) {
  const Rewritten joined =
      join_partials(graph_, split.backward, phases_.backward, phases_.boundary);
  if (joined.notes.empty()) return split;
  const std::vector<Root> roots = backward_roots_;
  for (Root& root : backward_roots_) root.node = joined[root.node];
  Split next = saved_search().evaluate(split);
  if (!next.feasible || next.moved > split.moved || next.held > split.held ||
      next.forward.units.size() > split.forward.units.size() ||
      next.backward.units.size() > split.backward.units.size()) {
    backward_roots_ = roots;
    return split;
  }
  for (OutputSlot& slot : slots_)
    if (slot.backward) slot.node = joined[slot.node];
  rewrites_.insert(rewrites_.end(), joined.notes.begin(), joined.notes.end());
  return next;
}

}  // namespace

std::shared_ptr<const Plan> compile(Graph& graph, const CompileRequest& request,
                                    const CompileOptions& options) {
  return Compiler(graph, request, options).run();
}

}  // namespace coda
