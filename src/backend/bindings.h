// What the sessions of all backends share: the memory that users bound, the arena that the plan
// owns, and all checks of a run, made before anything is written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/arena.h"
#include "backend/backend.h"
#include "backend/ranges.h"

namespace coda {

class Bindings {
 public:
  struct Options {
    bool widen = false;      ///< plan-owned floats are f64, and f64 may be bound to any float
    bool reuse = true;       ///< buffers that are never alive together share memory
    bool holds_f64 = false;  ///< inputs and outputs of that type are no error
    bool poison = false;     ///< fill the arena with NaN bytes once
    /// Whose memory the arena is; null: the host's. With a backend off the host, bound memory is
    /// not looked into: targets, ids, positions and offsets are not checked here.
    Backend* backend = nullptr;
  };

  /// Allocates the arena for runs of up to max_tokens rows. Throws UsageError for no plan, a plan
  /// with types that the backend has not, or too many tokens.
  Bindings(std::shared_ptr<const Plan> plan, std::int64_t max_tokens, Options options);
  Bindings(std::shared_ptr<const Plan> plan, std::int64_t max_tokens)
      : Bindings(std::move(plan), max_tokens, Options{}) {}

  /// Throws UsageError unless name is an input or output of the plan and the view's dtype, columns,
  /// fixed rows and stride fit. Integer columns are i32 or i64, whichever the plan says.
  void bind(std::string_view name, const TensorView& view);

  /// Checks that everything the phase reads or writes is bound with `tokens` rows, that outputs
  /// overlap nothing else that is bound, and that targets, ids, positions and cu_seqlens are in
  /// range. Throws UsageError; writes nothing. Afterwards views are those of `tokens` rows.
  /// Backward must follow a forward run of as many rows.
  void begin(Phase phase, std::int64_t tokens);

  /// To be called when the phase has run: only then may backward follow forward.
  void end(Phase phase);

  /// The part of a buffer that a step reads or writes: rows and columns of a matrix, columns of a
  /// row vector or of its partials. Partials of a col and scalars come whole (see Extents). Of what
  /// has M rows, or partials of M rows, those of the step's piece.
  TensorView view(const Slice& slice, Piece piece = {}) const;
  /// A whole buffer, and the same by name (UsageError if the plan has no such buffer).
  TensorView view(std::int32_t buffer) const;
  TensorView view(std::string_view name) const;

  /// Throws what begin would throw for the integers that the last run of a phase read, had they
  /// been the host's. copy(to, from, bytes) brings them there.
  using CopyToHost = std::function<void(void* to, const void* from, std::size_t bytes)>;
  void check_ranges(Phase phase, const CopyToHost& copy) const;

  const Plan& plan() const { return *plan_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t max_tokens() const { return max_tokens_; }

 private:
  std::int32_t index_of(std::string_view name) const;
  void check_bound(std::int32_t buffer, std::int64_t tokens) const;
  void check_overlap(Phase phase) const;
  TensorView rows_of_view(std::int32_t buffer, Piece piece) const;
  bool used(Phase phase, std::int32_t buffer) const;
  bool written(Phase phase, std::int32_t buffer) const;

  std::shared_ptr<const Plan> plan_;
  std::int64_t max_tokens_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t forward_tokens_ = -1;  ///< rows of the last complete forward run, -1: none
  Options options_;
  Arena arena_;
  std::shared_ptr<void> memory_;
  std::vector<TensorView> bound_;  ///< per buffer; inputs and outputs only
  std::vector<char> is_bound_;     ///< per buffer
  std::vector<char> used_[2];      ///< per phase and buffer
  std::vector<char> updated_[2];   ///< the same: inputs that an opaque step updates in place
  std::vector<RangeCheck> ranges_[2];
};

}  // namespace coda
