#include "coda/nn.h"

namespace coda {

Tensor cross_entropy(Tensor logits, Tensor targets, Reduction reduction,
                     std::int64_t ignore_index) {
  const Tensor counts = valid(targets, ignore_index);  // [M] of 1 and 0
  const Tensor loss = counts * (lse(logits) - pick(logits, targets, ignore_index));
  if (reduction == Reduction::none) return loss;
  if (reduction == Reduction::sum) return sum(loss);
  // With no row that counts, 1 / maximum(0, 1) keeps gradients at zero and 0 / 0 makes the loss
  // NaN.
  const Tensor count = sum(counts);
  Graph& graph = logits.graph();
  const Tensor one = graph.constant(1);
  return sum(loss * (one / maximum(count, one))) + graph.constant(0) / count;
}

}  // namespace coda
