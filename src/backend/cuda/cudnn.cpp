#include "backend/cuda/cudnn.h"

#include "base/check.h"

#ifdef CODA_CUDNN

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "backend/cuda/library.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define NV_CUDNN_FRONTEND_DISABLE_LOGGING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

// The front end takes every function from here.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace coda::cuda {

namespace fe = cudnn_frontend;

namespace {

using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr std::size_t kOldest = 91900;  // what attention over packed sequences was tried with
constexpr std::size_t kOldestBackward = 92500;  // its ordered sums of d_q on Hopper

/// cuDNN, opened once a process and never closed: kernels of it may be in use until the end.
struct Library {
  std::string problem, version, path;
  std::size_t number = 0;
  cudnnHandle_t handle = nullptr;
  std::mutex mutex;  ///< of the handle

  static Library& get() {
    static Library& library = *new Library;
    return library;
  }

 private:
  Library() {
    if (!why_no_gpu().empty()) {
      problem = why_no_gpu();
      return;
    }
    problem = open();
    if (!problem.empty()) return;
    if (number < kOldest) {
      problem = fmt::format("cuDNN {} is too old: expected 9.19 or later", version);
      return;
    }
    Device::get().use();
    try {
      if (const auto status = fe::detail::create_handle(&handle); status != CUDNN_STATUS_SUCCESS) {
        problem = fmt::format("cudnnCreate: status {}", static_cast<int>(status));
      }
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }

  std::string open() {
    // The front end opens the CUDA runtime by name; what is open by then is found whatever the
    // loader's path.
    for (const auto& candidate : library_candidates("CODA_CUDART", "libcudart.so")) {
      if (dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) break;
    }
    std::string last = "not found";
    for (const auto& candidate : library_candidates("CODA_CUDNN", "libcudnn.so", {"9"})) {
      void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) {
        last = dlerror();
        continue;
      }
      auto* get_version = reinterpret_cast<std::size_t (*)()>(dlsym(library, "cudnnGetVersion"));
      if (get_version == nullptr) {
        last = candidate + " lacks cudnnGetVersion";
        continue;
      }
      fe::cudnn_dlhandle = library;
      path = candidate;
      number = get_version();
      version = fmt::format("cuDNN {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
      return "";
    }
    return "no cuDNN: " + last;
  }
};

void check_cudnn(const fe::error_t& status, const char* what) {
  if (status.is_good()) return;
  throw_error<BackendError>("cudnn: attention: {}: {}", what, status.err_msg);
}

/// Numbers of the tensors in a graph: matrices by CudnnOperand, then their offsets, then lengths.
constexpr std::int64_t offsets_id(std::size_t operand) {
  return static_cast<std::int64_t>(kCudnnOperands + operand);
}
constexpr std::int64_t kLengthsId = 2 * kCudnnOperands;

class FrontEndAttention final : public CudnnAttention {
 public:
  explicit FrontEndAttention(const CudnnAttentionShape& shape) : shape_(shape) {
    const auto io = shape.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
    graph_.set_io_data_type(io)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    lengths_ = graph_.tensor(fe::graph::Tensor_attributes()
                                 .set_name("lengths")
                                 .set_dim({shape.sequences, 1, 1, 1})
                                 .set_stride({1, 1, 1, 1})
                                 .set_data_type(fe::DataType_t::INT32)
                                 .set_uid(kLengthsId));
    shape.backward ? add_backward() : add_forward();

    Library& library = Library::get();
    const std::lock_guard lock(library.mutex);
    check_cudnn(graph_.validate(), "validate");
    check_cudnn(graph_.build_operation_graph(library.handle), "build_operation_graph");
    if (shape.backward) {
      // Engine 6 is Hopper's; 4 stages mean that a block adds to d_q in its turn, so bits repeat.
      check_cudnn(graph_.create_execution_plan(6, {{fe::KnobType_t::TILE_M, 2},
                                                   {fe::KnobType_t::TILE_N, 1},
                                                   {fe::KnobType_t::KERNEL_CFG, 2},
                                                   {fe::KnobType_t::STREAM_K, 0},
                                                   {fe::KnobType_t::TILE_CGA_M, 0},
                                                   {fe::KnobType_t::STAGES, 4}}),
                  "create_execution_plan");
    } else {
      check_cudnn(graph_.create_execution_plans({fe::HeurMode_t::A}), "create_execution_plans");
      graph_.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    }
    check_cudnn(graph_.check_support(), "check_support");
    check_cudnn(graph_.build_plans(), "build_plans");
    std::int64_t bytes = 0;
    check_cudnn(graph_.get_workspace_size(bytes), "get_workspace_size");
    workspace_bytes_ = static_cast<std::size_t>(bytes);
  }

  void run(const Stream& stream, const CudnnAttentionMemory& memory) const override {
    Library& library = Library::get();
    std::unordered_map<std::int64_t, void*> pointers{{kLengthsId, memory.lengths}};
    for (std::size_t i = 0; i < (shape_.backward ? kCudnnOperands : kDO); ++i) {
      pointers.emplace(static_cast<std::int64_t>(i), memory.matrices[i]);
      pointers.emplace(offsets_id(i), static_cast<std::int64_t*>(memory.offsets) +
                                          static_cast<std::int64_t>(i) * (shape_.sequences + 1));
    }
    const std::lock_guard lock(library.mutex);
    if (fe::detail::set_stream(library.handle, reinterpret_cast<cudaStream_t>(stream.handle())) !=
        CUDNN_STATUS_SUCCESS) {
      throw_error<BackendError>("cudnn: attention: cudnnSetStream failed");
    }
    check_cudnn(graph_.execute(library.handle, pointers, memory.workspace), "execute");
  }

 private:
  /// Name, sizes and places of a matrix, whose sequences lie one behind the other.
  void describe(fe::graph::Tensor_attributes& tensor, CudnnOperand operand) {
    const bool is_kv = operand == kK || operand == kV || operand == kDK || operand == kDV;
    const std::int64_t heads = is_kv ? shape_.n_kv_heads : shape_.n_heads;
    const std::int64_t columns = operand == kLse ? 1 : shape_.head_dim;
    const std::int64_t stride = shape_.strides[operand];
    const auto offsets = graph_.tensor(fe::graph::Tensor_attributes()
                                           .set_name(fmt::format("offsets_{}", operand))
                                           .set_dim({shape_.sequences + 1, 1, 1, 1})
                                           .set_stride({1, 1, 1, 1})
                                           .set_data_type(fe::DataType_t::INT64)
                                           .set_uid(offsets_id(operand)));
    tensor.set_dim({shape_.sequences, heads, shape_.max_tokens, columns})
        .set_stride({shape_.max_tokens * stride, columns, stride, 1})
        .set_ragged_offset(offsets)
        .set_uid(static_cast<std::int64_t>(operand));
    if (operand == kLse) tensor.set_data_type(fe::DataType_t::FLOAT);
  }

  TensorPointer operand(CudnnOperand which) {
    fe::graph::Tensor_attributes tensor;
    tensor.set_name(fmt::format("matrix_{}", static_cast<std::size_t>(which)));
    describe(tensor, which);
    return graph_.tensor(tensor);
  }
  void result(const TensorPointer& tensor, CudnnOperand which) {
    tensor->set_output(true);
    describe(*tensor, which);
  }

  template <class Attributes>
  Attributes attributes(const char* name) const {
    Attributes a;
    a.set_name(name)
        .set_attn_scale(shape_.scale)
        .set_padding_mask(true)
        .set_seq_len_q(lengths_)
        .set_seq_len_kv(lengths_)
        .set_causal_mask(true)
        .set_max_total_seq_len_q(shape_.max_tokens)
        .set_max_total_seq_len_kv(shape_.max_tokens);
    return a;
  }

  void add_forward() {
    auto a = attributes<fe::graph::SDPA_attributes>("attention");
    a.set_generate_stats(true);
    const auto [o, lse] = graph_.sdpa(operand(kQ), operand(kK), operand(kV), a);
    result(o, kO);
    result(lse, kLse);
  }

  void add_backward() {
    const auto a = attributes<fe::graph::SDPA_backward_attributes>("attention_backward");
    const auto [d_q, d_k, d_v] = graph_.sdpa_backward(operand(kQ), operand(kK), operand(kV),
                                                      operand(kO), operand(kDO), operand(kLse), a);
    result(d_q, kDQ);
    result(d_k, kDK);
    result(d_v, kDV);
  }

  CudnnAttentionShape shape_;
  mutable fe::graph::Graph graph_;
  TensorPointer lengths_;
};

}  // namespace

const std::string& CudnnAttention::why_not(bool backward) {
  const Library& library = Library::get();
  static const std::string old_backward =
      library.problem.empty() && library.number < kOldestBackward
          ? fmt::format("{}: a backward of repeatable bits needs 9.25", library.version)
          : library.problem;
  return backward ? old_backward : library.problem;
}

const std::string& CudnnAttention::version() { return Library::get().version; }
const std::string& CudnnAttention::path() { return Library::get().path; }

std::shared_ptr<const CudnnAttention> CudnnAttention::get(const CudnnAttentionShape& shape) {
  if (!why_not(shape.backward).empty()) {
    throw_error<BackendError>("cudnn: attention: {}", why_not(shape.backward));
  }
  static std::mutex& mutex = *new std::mutex;
  // Kept to the end of the process, like the library.
  static auto& graphs = *new std::map<CudnnAttentionShape, std::shared_ptr<const CudnnAttention>>;
  const std::lock_guard lock(mutex);
  auto& graph = graphs[shape];
  if (!graph) {
    try {
      graph = std::make_shared<FrontEndAttention>(shape);
    } catch (const BackendError&) {
      throw;
    } catch (const std::exception& error) {  // of the front end
      throw_error<BackendError>("cudnn: attention: {}", error.what());
    }
  }
  return graph;
}

}  // namespace coda::cuda

#else

namespace coda::cuda {

const std::string& CudnnAttention::why_not(bool) {
  static const std::string problem = "built without cuDNN's headers";
  return problem;
}
const std::string& CudnnAttention::version() { return why_not(false); }
const std::string& CudnnAttention::path() { return why_not(false); }
std::shared_ptr<const CudnnAttention> CudnnAttention::get(const CudnnAttentionShape&) {
  throw_error<BackendError>("cudnn: attention: {}", why_not(false));
}

}  // namespace coda::cuda

#endif
