// Attention on the GPU: grouped-query, causal, over packed sequences; forward and backward (the
// rows of ops/opaque.h). Our own kernels: tensor cores for bf16 and f16 up to head_dim 256 (by
// wgmma for heads of 64 and 128), the ordinary units for everything else. Sums have one
// owner and one order, so bits repeat, and a sequence's do not depend on its neighbours in the
// batch. Memory beside operands, in backward: one float a row and head; on the ordinary units two.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/cuda/device/attention_params.cuh"
#include "backend/cuda/step_kernel.h"

namespace coda::cuda {

/// What of an attention step is compiled into its kernels.
struct AttentionVariant {
  DType dtype = DType::bf16;  ///< of q, k, v, o and their gradients
  std::int64_t head_dim = 0;
  bool backward = false;
  /// By wgmma (see may_use_wgmma), where all rows lie at multiples of 16 bytes.
  bool wgmma = false;
  bool window = false, softcap = false;  ///< there is one; which is a parameter

  bool tensor_cores() const {
    return head_dim <= 256 && (dtype == DType::bf16 || dtype == DType::f16);
  }
  /// Heads of 64 and 128 without window and softcap, unless CODA_ATTENTION=mma asks for mma.sync.
  bool may_use_wgmma() const;
};

/// Sources in the order of launches. Forward: one; backward: delta, d_q, then d_k and d_v.
std::vector<KernelSource> attention_sources(const AttentionVariant& variant);

/// What the launches of attention_sources take.
struct AttentionLaunches {
  struct Size {
    unsigned grid, block;
  };
  coda_device::AttentionParams params{};
  std::vector<Size> sizes;  ///< one a source; empty if there is nothing to do
};

/// Host work only. views: of the registry row's operands, in order. `workspace`: of at least
/// own_attention_workspace_bytes.
AttentionLaunches attention_launches(const Attrs& attrs, const AttentionVariant& variant,
                                     std::span<const TensorView> views, std::int64_t tokens,
                                     void* workspace);

/// Our own kernels, on views of device memory in the order of the registry row.
class OwnAttention final : public StepKernel {
 public:
  /// attrs: as of the opaque node. `workspace`: own_attention_workspace_bytes. Whether wgmma is
  /// used is found when operands are bound.
  OwnAttention(const Attrs& attrs, const AttentionVariant& variant, DevicePointer workspace);

  /// Those of aligned operands.
  std::vector<KernelSource> sources() const override;
  void bind(std::span<const TensorView> views, std::int64_t tokens) override;
  void launch(const Stream& stream) override;

 private:
  Attrs attrs_;
  AttentionVariant variant_;
  DevicePointer workspace_;
  AttentionLaunches launches_;
  std::vector<Kernel> kernels_;  ///< of variant_
};

std::size_t own_attention_workspace_bytes(const Attrs& attrs, const AttentionVariant& variant,
                                          std::int64_t max_tokens);

/// For a step of Opaque::attention or attention_backward.
std::unique_ptr<StepKernel> make_attention_kernel(const Step& step, const Plan& plan,
                                                  const StepContext& context);
/// Bytes of StepContext::workspace that the step needs.
std::size_t attention_workspace_bytes(const Step& step, const Plan& plan, std::int64_t max_tokens);

}  // namespace coda::cuda
