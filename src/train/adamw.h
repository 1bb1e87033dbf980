// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019) with clipping
// by the global norm, and the learning-rate schedule. Work is cut into chunks of fixed size, so
// that the bits depend on no number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend_tensor.h"
#include "train/model.h"

namespace coda {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< of matrices; vectors (norm weights) do not decay
};

class AdamW {
 public:
  /// On the host, with the threads of `host`; null: with the caller's alone.
  AdamW(const std::vector<Parameter>& parameters, const AdamWOptions& options,
        Backend* host = nullptr);
  /// Where the model's weights are. The model and its backend must outlive it.
  AdamW(Model& model, const AdamWOptions& options);

  /// Euclidean norm of all gradients together, summed in double.
  double gradient_norm();

  /// Updates every value from gradient_scale * its gradient. `step` counts from 1.
  void update(std::int64_t step, double learning_rate, double gradient_scale);

  /// Running means of the gradient and of its square, one element a weight; for checkpoints.
  /// On a device: what fetch brought from there, and what moments_changed sends there.
  std::span<float> first_moment(std::size_t parameter) { return host(first_, parameter); }
  std::span<float> second_moment(std::size_t parameter) { return host(second_, parameter); }
  void fetch();
  void moments_changed();

 private:
  using Moments = std::vector<std::vector<float>>;
  std::span<float> host(Moments& moments, std::size_t parameter);
  void hold_on_host();
  void for_each_chunk(const std::function<void(std::size_t)>& body);

  /// Elements [begin, begin + count) of a parameter.
  struct Chunk {
    std::size_t parameter = 0, begin = 0, count = 0;
  };

  const std::vector<Parameter>& parameters_;
  AdamWOptions options_;
  Backend* host_ = nullptr;
  std::vector<Chunk> chunks_;
  std::vector<double> square_sums_;  ///< of the chunks' gradients
  Moments first_, second_;           ///< on a device: empty until asked for
  std::vector<BackendTensor> device_first_, device_second_;
  std::unique_ptr<DeviceAdamW> device_;
};

/// Rises linearly from peak / warmup at step 1 to peak at step `warmup`, then falls as half a
/// cosine to `least` at step `steps`. Steps count from 1.
struct Schedule {
  double peak = 1e-3;
  double least = 1e-4;
  std::int64_t warmup = 0;
  std::int64_t steps = 1;

  double at(std::int64_t step) const;
};

}  // namespace coda
