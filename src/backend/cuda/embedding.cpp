#include "backend/cuda/embedding.h"

#include <algorithm>
#include <vector>

#include "backend/cuda/device/embedding_params.cuh"
#include "backend/cuda/device_sources.h"
#include "backend/cuda/op_text.h"
#include "base/check.h"

namespace coda::cuda {

using coda_device::EmbeddingParams;

KernelSource embedding_source(const char* entry, DType table, DType x, int columns) {
  KernelSource source{entry + 5, entry, "", 0};  // without "coda_"
  source.text = device_text(
      {"params.cuh", "embedding_params.cuh", "ptx.cuh", "elements.cuh", "op_math.cuh", "rows.cuh"});
  source.text += fmt::format(
      "namespace coda_device {{\nusing Table = {};\nusing X = {};\nconstexpr int kColumns = "
      "{};\n}}\n",
      element_text(table), element_text(x), columns);
  source.text += device_text({"embedding.cuh"});
  return source;
}

namespace {

constexpr std::int64_t kThreads = 128;  // embedding.cuh

unsigned blocks_for(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

bool aligned(const TensorView& view, int columns) {
  const std::size_t element = size_of(view.dtype);
  const std::size_t unit = std::min<std::size_t>(16, static_cast<std::size_t>(columns) * element);
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.cols % columns == 0 &&
         static_cast<std::size_t>(view.stride) * element % unit == 0;
}

/// Views in the order of the registry row: table, ids, x; or ids, d_x, d_table.
class EmbeddingStep final : public StepKernel {
 public:
  EmbeddingStep(const Step& step, const Plan& plan, const StepContext& context)
      : backward_(step.opaque == Opaque::embedding_backward), context_(context) {
    const auto dtype_of = [&](std::size_t slice) {
      return plan.buffers[static_cast<std::size_t>(step.slices[slice].buffer)].dtype;
    };
    table_ = dtype_of(backward_ ? 2 : 0);
    x_ = dtype_of(backward_ ? 1 : 2);
    params_.accumulates = step.accumulates ? 1 : 0;
  }

  std::vector<KernelSource> sources() const override {
    std::vector<KernelSource> all;
    for (const char* entry : entries()) {
      all.push_back(embedding_source(entry, table_, x_, kChunk));
    }
    return all;
  }

  void bind(std::span<const TensorView> views, std::int64_t tokens) override {
    const TensorView& table = views[backward_ ? 2 : 0];
    const TensorView& ids = views[backward_ ? 0 : 1];
    const TensorView& x = views[backward_ ? 1 : 2];
    columns_ = aligned(table, kChunk) && aligned(x, kChunk) ? kChunk : 1;
    kernels_.clear();
    for (const char* entry : entries()) {
      kernels_.push_back(KernelStore::get().load(embedding_source(entry, table_, x_, columns_)));
    }
    EmbeddingParams& p = params_;
    p.ids = ids.data;
    p.ids_are_i64 = ids.dtype == DType::i64 ? 1 : 0;
    p.table = table.data;
    p.table_stride = table.stride;
    p.x = x.data;
    p.x_stride = x.stride;
    p.rows = tokens;
    p.vocab = table.rows;
    p.columns = table.cols;
    table_element_ = size_of(table.dtype);
    p.place = reinterpret_cast<unsigned*>(context_.workspace);
    p.order = p.place + context_.max_tokens;
    p.error_flag = reinterpret_cast<unsigned*>(context_.error_flag);
  }

  void launch(const Stream& stream) override {
    EmbeddingParams& p = params_;
    if (!backward_) {
      if (p.rows > 0) kernels_[0].launch(stream, static_cast<unsigned>(p.rows), kThreads, 1, {&p});
      return;
    }
    // Row by row: what lies between the rows of the gradient is not this step's.
    const auto zero = [&](const void* at, std::int64_t stride, std::int64_t width,
                          std::int64_t height, std::size_t element) {
      if (width == 0 || height == 0) return;
      check(driver().memset_d2d8_async(reinterpret_cast<DevicePointer>(at),
                                       static_cast<std::size_t>(stride) * element, 0,
                                       static_cast<std::size_t>(width) * element,
                                       static_cast<std::size_t>(height), stream.handle()),
            "cuMemsetD2D8Async");
    };
    if (!p.accumulates) zero(p.table, p.table_stride, p.columns, p.vocab, table_element_);
    if (p.rows == 0) return;
    zero(p.place, p.rows, p.rows, 1, sizeof(unsigned));
    const unsigned rows = blocks_for(p.rows, kThreads);
    kernels_[0].launch(stream, rows, kThreads, 1, {&p},
                       blocks_for(p.rows, coda_device::kEmbeddingSlice));
    kernels_[1].launch(stream, rows, kThreads, 1, {&p});
    kernels_[2].launch(stream, static_cast<unsigned>(p.rows), kThreads, 1, {&p},
                       blocks_for(p.columns, kThreads * columns_));
  }

 private:
  static constexpr int kChunk = 4;

  std::vector<const char*> entries() const {
    if (!backward_) return {"coda_embedding"};
    return {"coda_embedding_place", "coda_embedding_order", "coda_embedding_sums"};
  }

  bool backward_ = false;
  StepContext context_;
  DType table_ = DType::f32, x_ = DType::f32;
  int columns_ = 1;
  std::vector<Kernel> kernels_;
  EmbeddingParams params_{};
  std::size_t table_element_ = 0;
};

}  // namespace

std::unique_ptr<StepKernel> make_embedding_kernel(const Step& step, const Plan& plan,
                                                  const StepContext& context) {
  return std::make_unique<EmbeddingStep>(step, plan, context);
}

std::size_t embedding_workspace_bytes(const Step& step, const Plan&, std::int64_t max_tokens) {
  if (step.opaque != Opaque::embedding_backward) return 0;
  return 2 * static_cast<std::size_t>(max_tokens) * sizeof(unsigned);
}

}  // namespace coda::cuda
