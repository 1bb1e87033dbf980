// A step of attention on cuDNN, where it fits; else on our own kernels. Which one is decided by
// what the plan knows (attention_choice) and, when operands are bound, by alignment and the number
// of sequences.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/cudnn.h"

namespace coda::cuda {

struct AttentionChoice {
  bool cudnn = false;
  std::string text;  ///< "cuDNN 9.28.1", or "own kernels (why not cuDNN's)"
};

/// By what a plan knows. By default forward goes to cuDNN, backward to our kernels: cuDNN's fast
/// backward adds in any order, and that in a fixed order is slower than ours. CODA_ATTENTION=cudnn
/// takes it all the same, =own neither, =mma neither that nor wgmma; throws UsageError for other
/// values but "auto".
AttentionChoice attention_choice(const AttentionVariant& variant);

/// The same of a step; empty if it is none of attention.
std::string attention_text(const Step& step, const Plan& plan);

/// Most sequences of a run that go to cuDNN. It gives every sequence a grid for the most tokens
/// there may be, so its cost grows with their number, whatever their lengths.
constexpr std::int64_t kCudnnSequences = 64;

/// The kernel that writes what cuDNN reads beside matrices.
std::vector<KernelSource> cudnn_attention_sources();

class CudnnAttentionStep final : public StepKernel {
 public:
  /// `workspace`: cudnn_attention_workspace_bytes.
  CudnnAttentionStep(const Attrs& attrs, const AttentionVariant& variant, std::int64_t max_tokens,
                     DevicePointer workspace, std::size_t workspace_bytes);

  /// Our attention's kernels are not among them: they are compiled when a run needs them.
  std::vector<KernelSource> sources() const override { return cudnn_attention_sources(); }
  void bind(std::span<const TensorView> views, std::int64_t tokens) override;
  void launch(const Stream& stream) override;

  /// Why the last bind chose our own kernels; empty if it did not.
  const std::string& why_own() const { return why_own_; }

 private:
  std::string bind_cudnn(std::span<const TensorView> views, std::int64_t tokens);

  Attrs attrs_;
  AttentionVariant variant_;
  std::int64_t max_tokens_;
  DevicePointer workspace_;
  std::size_t workspace_bytes_;
  OwnAttention own_;
  std::string why_own_;
  std::shared_ptr<const CudnnAttention> graph_;
  CudnnAttentionMemory memory_;
  coda_device::AttentionOffsetsParams offsets_{};
  std::vector<Kernel> kernels_;
};

/// strides: in the order of CudnnOperand, the largest to be expected.
std::size_t cudnn_attention_workspace_bytes(
    const Attrs& attrs, const AttentionVariant& variant, std::int64_t max_tokens,
    const std::array<std::int64_t, kCudnnOperands>& strides);

}  // namespace coda::cuda
