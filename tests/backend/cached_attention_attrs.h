// Attributes of the registry row cached_attention, from a case of the tests of any backend.
#pragma once

#include <cmath>
#include <cstdint>

#include "coda/op.h"
#include "ops/opaque.h"

namespace coda {

/// A case has n_heads, n_kv_heads, head_dim, capacity, window and softcap.
template <class Case>
Attrs cached_attention_attrs(const Case& c) {
  Attrs attrs;
  attrs.opaque = Opaque::cached_attention;
  attrs.index = static_cast<std::int32_t>(c.n_heads);
  attrs.index2 = static_cast<std::int32_t>(c.n_kv_heads);
  attrs.period = c.head_dim;
  attrs.hi = c.capacity;
  attrs.value = 1 / std::sqrt(static_cast<double>(c.head_dim));
  attrs.lo = c.window;
  attrs.softcap = c.softcap;
  return attrs;
}

}  // namespace coda
