// Which integer inputs must lie in which range, derived from the steps that read them, and the
// checks themselves. Run before a phase writes anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "tensor/tensor.h"

namespace coda {

struct RangeCheck {
  enum class What : std::uint8_t {
    target,    ///< [0, limit) or ignore_index
    id,        ///< [0, limit)
    position,  ///< >= 0
    offsets,   ///< cu_seqlens: 0 first, M last, not decreasing
    past,      ///< rows in a cache: with those of the run, in [0, limit], a sequence
  };
  What what = What::target;
  std::int32_t buffer = -1;
  std::int64_t limit = 0;
  std::int64_t ignore_index = 0;
  std::int32_t offsets = -1;   ///< past: the buffer of cu_seqlens
  std::int64_t sequences = 0;  ///< past: that the cache has room for
  auto operator<=>(const RangeCheck&) const = default;
};

/// The checks that a list of steps needs, without repetitions. Only buffers with Role::input.
std::vector<RangeCheck> range_checks(const Plan& plan, const std::vector<Step>& steps);

/// Throws UsageError that names the input, the row, the range and the value found. `offsets` is the
/// view of cu_seqlens, where the check names it; cu_seqlens itself is checked first.
void check_range(const RangeCheck& check, const std::string& name, const TensorView& view,
                 std::int64_t tokens, const TensorView& offsets = {});

}  // namespace coda
