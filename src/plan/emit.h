// Partitions -> a Plan: Programs with operands and SSA values, casts, partial stores and finishing
// loads, buffers and slices. Must not decide what is fused: plan/partition.h did.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "plan/compile.h"
#include "plan/partition.h"
#include "plan/plan.h"

namespace coda {

/// An output of the plan, bound by the user unless it is a result.
struct OutputSlot {
  std::string name;
  NodeId node = kNoNode;
  DType dtype = DType::f32;
  bool accumulate = false;
  /// The node's own buffer is this output: other units may read it.
  bool owner = false;
  bool backward = false;  ///< of the backward phase
  Role role = Role::output;
};

/// Where a tile, weight or vector lies.
struct Place {
  std::int32_t buffer = -1;
  std::int64_t row = 0, col = 0;
};

/// The memory type in which an opaque node writes a result (ops/opaque.h): `dtype`, or f32.
DType result_dtype(const Graph& graph, const Node& proj, DType dtype);

/// Grows a Plan phase by phase. The partitions must name the slots given to the constructor.
class PlanBuilder {
 public:
  PlanBuilder(const Graph& graph, const CompileOptions& options, std::vector<OutputSlot> slots,
              const std::vector<const Partition*>& phases, std::map<NodeId, double> constants);
  void add_forward(const Partition& partition);
  /// saved: what backward reads of the forward phase. Everything else it makes is its own.
  void add_backward(const Partition& partition, const std::vector<NodeId>& saved);
  Plan finish();

  // For the emitter of one program:
  const Graph& graph() const { return graph_; }
  /// Inputs that stand for a constant.
  const std::map<NodeId, double>& constants() const { return constants_; }
  const OutputSlot& slot(std::int32_t index) const { return slots_[index]; }
  const Buffer& buffer(std::int32_t index) const { return plan_.buffers[index]; }
  /// Where v can be read; throws InternalError if it is not in memory.
  Place locate(NodeId v);
  /// Where a store goes; makes the buffer when it is the first of it. A value that is only copied
  /// is read where it was before.
  Place place_for(const UnitStore& store, bool copied);
  Place slot_place(std::int32_t slot) const { return {slot_buffers_[slot], 0, 0}; }
  /// The buffers that hold a reduction, one a block of the reduced tile's columns.
  const std::vector<std::int32_t>& vector_buffers(NodeId v) const;
  std::int32_t add_vector_buffer(NodeId v, Buffer buffer);
  /// v is made of the partials of `stored`.
  void share_vector_buffers(NodeId v, NodeId stored) { vectors_[v] = vector_buffers(stored); }
  std::int32_t input_buffer(NodeId v);
  /// The memory type that v is rounded to where it is made; f32: none.
  DType rounding_of(NodeId v) const;
  std::string unique_name(const std::string& wish);
  std::string unique_program_name(const std::string& wish);
  std::string name_of_node(NodeId v) const;

 private:
  void name_operands(const Partition& partition);
  void add_steps(const Partition& partition);
  void add_opaque(const Unit& unit, std::vector<Step>& steps);
  std::int32_t add_buffer(Buffer buffer);
  std::int32_t own_buffer(NodeId v);
  DType storage_dtype(NodeId v) const;

  const Graph& graph_;
  const CompileOptions& options_;
  std::vector<OutputSlot> slots_;
  std::map<NodeId, double> constants_;
  std::vector<std::int32_t> slot_buffers_;
  std::set<NodeId> rounded_;
  std::map<NodeId, std::string> hints_;
  std::map<NodeId, Place> places_;
  std::map<NodeId, std::int32_t> own_;
  std::map<NodeId, std::vector<std::int32_t>> vectors_;
  std::set<std::string> names_, program_names_;
  bool backward_ = false;
  Plan plan_;
};

/// One unit as a Step with a verified Program.
Step emit_unit(PlanBuilder& plan, const Unit& unit, const std::string& phase);

}  // namespace coda
