// cuDNN's attention: one graph for a shape, built and kept for the process. The library is opened
// at run time; its headers, and those of its C++ front end, are an input of the build that may be
// missing (cmake: CODA_CUDNN_INCLUDE): then why_not() says so and the rest throws. Nothing outside
// cudnn.cpp sees them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/cuda/runtime.h"
#include "coda/dtype.h"

namespace coda::cuda {

/// Matrices of an attention, in the order of arrays over them. Forward knows the first five.
enum CudnnOperand : std::size_t { kQ, kK, kV, kO, kLse, kDO, kDQ, kDK, kDV, kCudnnOperands };

/// What a graph is built for. Causal, over packed sequences.
struct CudnnAttentionShape {
  DType dtype = DType::bf16;  ///< bf16 or f16, of everything but lse
  bool backward = false;
  std::int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  float scale = 1;
  std::int64_t sequences = 0;   ///< places for sequences; those without one have length 0
  std::int64_t max_tokens = 0;  ///< most rows, of one sequence and of all
  std::array<std::int64_t, kCudnnOperands> strides{};  ///< elements from a row to the next
  auto operator<=>(const CudnnAttentionShape&) const = default;
};

/// Device memory of one run.
struct CudnnAttentionMemory {
  std::array<void*, kCudnnOperands> matrices{};  ///< at multiples of 16 bytes
  /// i32 [sequences]: rows of each sequence.
  void* lengths = nullptr;
  /// i64 [kCudnnOperands, sequences + 1]: elements from a matrix's start to each sequence.
  void* offsets = nullptr;
  void* workspace = nullptr;  ///< CudnnAttention::workspace_bytes()
};

class CudnnAttention {
 public:
  /// Why cuDNN cannot be used for a direction, in a line; empty if it can. Backward needs 9.25,
  /// whose algorithm of Hopper repeats its bits without a matrix of all scores.
  static const std::string& why_not(bool backward);
  /// Such as "cuDNN 9.28.1"; only if it could be opened.
  static const std::string& version();
  static const std::string& path();

  /// The graph for a shape. Work of the host. Throws BackendError if cuDNN does not take the shape.
  static std::shared_ptr<const CudnnAttention> get(const CudnnAttentionShape& shape);

  virtual ~CudnnAttention() = default;
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  /// Enqueues and waits for nothing (but for what cuDNN loads at its first run). The front end
  /// allocates on the host to pass pointers on; the replay of a recorded run does not.
  virtual void run(const Stream& stream, const CudnnAttentionMemory& memory) const = 0;

 protected:
  std::size_t workspace_bytes_ = 0;
};

}  // namespace coda::cuda
