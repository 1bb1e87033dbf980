// Operators of Transformers as math on a Graph. Each is a few primitive ops: nothing here has a
// backward pass or a kernel of its own; the compiler derives gradients and fuses by structure.
// docs/operators/ has a page for each: equation, gradient, and the programs it becomes.
//
// Shapes: tile [M, n] with one row a token, weight [n, k] with rows = output features (as in
// Hugging Face checkpoints), row vector [n], col vector [M]. Everything computed is fp32; memory
// types are the plan's business. All throw UsageError for operands of other kinds or shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coda/graph.h"

namespace coda {

/// y = x W^T. x: [M, k]; weight: [n, k]. -> [M, n].
Tensor linear(Tensor x, Tensor weight);
/// y = x W^T + bias. bias: row [n].
Tensor linear(Tensor x, Tensor weight, Tensor bias);

/// y = x * weight / sqrt(mean over columns of x^2 + eps). x: [M, n]; weight: row [n]; eps > 0.
/// Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
Tensor rms_norm(Tensor x, Tensor weight, double eps);

/// x * sigmoid(x).
Tensor silu(Tensor x);
/// x * (1 + erf(x / sqrt(2))) / 2. Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
Tensor gelu(Tensor x);
/// Its approximation x * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, as GPT-2 has it.
Tensor gelu_tanh(Tensor x);

/// silu(gate) * up. gate, up: [M, n]. -> [M, n]. Shazeer, "GLU Variants Improve Transformer", 2020.
Tensor swiglu(Tensor gate, Tensor up);
/// The same with gate and up as the columns of one tile z [M, 2n], the first and second of each
/// pair. -> [M, n].
Tensor swiglu(Tensor z, Pairs pairs);

/// Rotary position embedding: every head's pair i is rotated by 2 pi pos * freq_i. x: [M, heads *
/// head_dim]; pos: i32 or i64 col; freq: row [head_dim] from rope_frequencies. Hugging Face's
/// layout is halves (within a head), the paper's is interleaved. Su et al., "RoFormer", 2021.
Tensor rope(Tensor x, Tensor pos, Tensor freq, PairLayout layout = PairLayout::halves);

/// RoPE frequencies of "llama3": low frequencies are divided by `factor`, high ones kept, those
/// between the two wavelengths blended.
struct Llama3Rope {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;

  bool operator==(const Llama3Rope&) const = default;
};

/// Turns per position of each of the head_dim / 2 pairs, theta^(-2i / head_dim) / (2 pi), computed
/// in double and given as head_dim numbers: high parts, then low parts. Their sum is off by less
/// than 2^-48 of itself, so that an angle at position 131071 is right to 1e-6 rad, where fp32
/// frequencies are wrong by 4e-3. Throws UsageError unless head_dim is even and positive and theta
/// positive.
std::vector<float> rope_frequencies(std::int64_t head_dim, double theta,
                                    const std::optional<Llama3Rope>& scaling = std::nullopt);

enum class Reduction : std::uint8_t { mean, sum, none };

/// loss_r = log sum_v exp(logits[r, v]) - logits[r, target_r]; 0 where target_r is ignore_index.
/// logits: [M, n]; targets: i32 or i64 col. none -> col; sum -> scalar; mean -> scalar, the sum
/// over the rows that count divided by their number: NaN, with gradients of exactly zero, if none
/// does. A row that does not count is multiplied by zero, not left out: a logit that is NaN or
/// infinite shows there too, where torch hides it. A target outside [0, n) that is not ignore_index
/// is an error of the run.
Tensor cross_entropy(Tensor logits, Tensor targets, Reduction reduction = Reduction::mean,
                     std::int64_t ignore_index = -100);

}  // namespace coda
