// Vector programs: see rows_source.h.
#include "backend/cuda/row_values.h"
#include "ops/op_table.h"

namespace coda::cuda {

namespace {

class VectorsWriter {
 public:
  VectorsWriter(const Program& program, const std::vector<PartialLoad>& partials)
      : program_(program), partials_(partials) {}

  VectorKernels write() {
    VectorKernels kernels;
    bool scalars = false;
    for (const Value& v : program_.values) {
      if (v.op == Op::sum) sums_[&v] = kernels.sum_count++;
      if (v.op == Op::sum || (v.op == Op::store_vector && v.kind == Kind::scalar)) scalars = true;
      internal_check(v.kind != Kind::tile && !v.partial, "vectors: {}: {} of a tile", program_.name,
                     name_of(v.op));
      if (v.op == Op::store_vector && v.kind != Kind::scalar) kernels.stored.push_back(v.operand);
    }
    if (scalars) kernels.sums = sums_kernel();
    if (!kernels.stored.empty()) kernels.stores = stores_kernel();
    return kernels;
  }

 private:
  /// A store of element `at` of a vector that is 1 element wide here.
  void store(Values& values, const Value& x, const std::string& at) {
    const Operand& to = values.operand(x.operand);
    const std::string data = fmt::format("p.operands[{}].data", x.operand);
    std::string number = x.kind == Kind::row ? values.wide(x.args[0], {"c", 1, 0}, 1) + "[0]"
                                             : values.fp32(x.args[0]);
    if (to.accumulate) number = fmt::format("op::add(F32::load({}, {}), {})", data, at, number);
    values.line(fmt::format("{}::store({}, {}, {});", element_text(to.dtype), data, at, number));
  }

  /// One block goes through the program in order: sums of vectors, then what follows from them.
  KernelSource sums_kernel() {
    Values values(program_, partials_);
    values.line("__shared__ float scratch[32];");
    for (std::size_t i = 0; i < program_.values.size(); ++i) {
      const Value& v = program_.values[i];
      const auto id = static_cast<std::int32_t>(i);
      if (v.op == Op::sum) {
        const Value& x = values.arg(v, 0);
        const bool col = x.kind == Kind::col;
        const std::string sum = values.fresh("sum");
        values.line(fmt::format("float {} = 0.0f;", sum));
        values.open(
            col ? "for (long long r = threadIdx.x; r < p.rows; r += blockDim.x)"
                : fmt::format("for (int c = threadIdx.x; c < {}; c += blockDim.x)", x.cols.num));
        const std::string number =
            col ? values.fp32(v.args[0]) : values.wide(v.args[0], {"c", 1, 0}, 1) + "[0]";
        values.line(fmt::format("{0} = op::add({0}, {1});", sum, number));
        values.close();
        values.line(fmt::format("{0} = warp_sum({0});", sum));
        values.line("__syncthreads();");
        values.line(fmt::format("if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = {};", sum));
        values.line("__syncthreads();");
        const std::string name = values.fresh("v");
        values.line(fmt::format("const float {} = sum_of<32>(scratch);", name));
        values.line(fmt::format("if (threadIdx.x == 0) p.sums[{}] = {};", sums_.at(&v), name));
        values.define(id, name);
      } else if (v.op == Op::store_vector && v.kind == Kind::scalar) {
        values.open("if (threadIdx.x == 0)");
        store(values, v, "0");
        values.close();
      } else if (v.kind == Kind::scalar && v.op != Op::store_vector) {
        values.number(id);
      }
    }
    return source("coda_vector_sums", VectorKernels::kSumThreads, values.take());
  }

  KernelSource stores_kernel() {
    Values values(program_, partials_);
    int index = 0;
    for (std::size_t i = 0; i < program_.values.size(); ++i) {
      const Value& v = program_.values[i];
      const auto id = static_cast<std::int32_t>(i);
      if (v.op == Op::sum) {
        const std::string name = values.fresh("v");
        values.line(fmt::format("const float {} = p.sums[{}];", name, sums_.at(&v)));
        values.define(id, name);
      } else if (v.kind == Kind::scalar && v.op != Op::store_vector) {
        values.number(id);
      }
      if (v.op != Op::store_vector || v.kind == Kind::scalar) continue;
      values.open(fmt::format("if (blockIdx.y == {})", index++));
      values.line(
          "const long long at = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;");
      const bool col = v.kind == Kind::col;
      values.open(col ? std::string("if (at < p.rows)") : fmt::format("if (at < {})", v.cols.num));
      values.line(col ? "const long long r = at;" : "const int c = static_cast<int>(at);");
      store(values, v, "at");
      values.close();
      values.close();
    }
    return source("coda_vector_stores", VectorKernels::kStoreThreads, values.take());
  }

  KernelSource source(const char* entry, int threads, const std::string& body) const {
    KernelSource made;
    made.name = "vectors_" + program_.name;
    made.entry = entry;
    made.text = fmt::format(
        "namespace coda_device {{\n"
        "struct RowsParams : RowsHeader {{ RowsOperand operands[{}]; }};\n"
        "extern \"C\" __global__ void __launch_bounds__({}) {}(const RowsParams p) {{\n"
        "{}}}\n}}  // namespace coda_device\n",
        program_.operands.size() + partials_.size(), threads, entry, body);
    return made;
  }

  const Program& program_;
  const std::vector<PartialLoad>& partials_;
  std::map<const Value*, int> sums_;
};

}  // namespace

VectorKernels vector_kernels(const Program& program, const std::vector<PartialLoad>& partials) {
  VectorKernels kernels = VectorsWriter(program, partials).write();
  if (!kernels.sums.text.empty()) prepend_row_files(kernels.sums);
  if (!kernels.stores.text.empty()) prepend_row_files(kernels.stores);
  return kernels;
}

}  // namespace coda::cuda
