// The two axes along which values are sliced and concatenated.
#pragma once

#include "coda/graph.h"

namespace coda {

/// Columns of tiles and row vectors, or rows of weights.
struct Axis {
  bool by_rows;

  static Axis of(Op op) { return {op == Op::rows || op == Op::cat_rows}; }

  Op slice() const { return by_rows ? Op::rows : Op::cols; }
  Op cat() const { return by_rows ? Op::cat_rows : Op::cat_cols; }
  std::int64_t extent(const Type& type) const { return by_rows ? type.rows : type.cols; }
  /// Does a value of this kind have the axis? (Others are broadcast along it.)
  bool has(Kind kind) const {
    return by_rows ? kind == Kind::weight : kind == Kind::tile || kind == Kind::row;
  }
  Type with_extent(Type type, std::int64_t extent) const {
    (by_rows ? type.rows : type.cols) = extent;
    return type;
  }
  /// [lo, hi) of x; x itself if it is broadcast along the axis.
  Tensor part(Tensor x, std::int64_t lo, std::int64_t hi) const {
    if (!has(x.type().kind)) return x;
    return by_rows ? rows(x, lo, hi) : cols(x, lo, hi);
  }
  Tensor join(const std::vector<Tensor>& parts) const {
    return by_rows ? cat_rows(parts) : cat_cols(parts);
  }
};

}  // namespace coda
