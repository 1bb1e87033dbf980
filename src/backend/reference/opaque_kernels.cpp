#include "backend/reference/opaque_kernels.h"

#include <vector>

#include "backend/element.h"
#include "base/check.h"

namespace coda::reference {

void embedding_forward(const TensorView& table, const TensorView& ids, const TensorView& x) {
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const auto id = static_cast<std::int64_t>(read_element(ids, r, 0));
    for (std::int64_t c = 0; c < x.cols; ++c) write_element(x, r, c, read_element(table, id, c));
  }
}

void embedding_backward(const TensorView& ids, const TensorView& d_x, const TensorView& d_table,
                        bool accumulates) {
  const std::int64_t width = d_table.cols;
  std::vector<double> sums(static_cast<std::size_t>(d_table.rows * width), 0.0);
  for (std::int64_t r = 0; r < d_x.rows; ++r) {
    const auto id = static_cast<std::int64_t>(read_element(ids, r, 0));
    for (std::int64_t c = 0; c < width; ++c) {
      sums[static_cast<std::size_t>(id * width + c)] += read_element(d_x, r, c);
    }
  }
  for (std::int64_t r = 0; r < d_table.rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const double before = accumulates ? read_element(d_table, r, c) : 0.0;
      write_element(d_table, r, c, before + sums[static_cast<std::size_t>(r * width + c)]);
    }
  }
}

void run_opaque(Opaque opaque, const Attrs& attrs, std::span<const TensorView> in,
                std::span<const TensorView> out, bool accumulates) {
  switch (opaque) {
    case Opaque::attention:
      return attention_forward(attrs, in[0], in[1], in[2], in[3], out[0], out[1]);
    case Opaque::attention_backward:
      return attention_backward(attrs, in[0], in[1], in[2], in[3], in[4], in[5], in[6], out[0],
                                out[1], out[2]);
    case Opaque::embedding:
      return embedding_forward(in[0], in[1], out[0]);
    case Opaque::embedding_backward:
      return embedding_backward(in[0], in[1], out[0], accumulates);
    case Opaque::cached_attention:
      return cached_attention(attrs, in[0], in[1], in[2], in[3], in[4], in[5], in[6], out[0]);
    case Opaque::none:
      break;
  }
  throw InternalError("reference: run_opaque: a step without program and without opaque node");
}

}  // namespace coda::reference
