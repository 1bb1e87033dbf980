#include "plan/delay.h"

#include <algorithm>
#include <vector>

namespace coda {
namespace {

bool writes(const Step& step, std::size_t slice) {
  return step.program ? step.program->operands[slice].output
                      : static_cast<std::int32_t>(slice) >= step.n_inputs;
}

class Delay {
 public:
  explicit Delay(Plan& plan) : plan_(plan), steps_(plan.backward), early_(plan.buffers.size(), 0) {}

  void run() {
    const auto first = static_cast<std::int32_t>(plan_.forward.size());
    std::vector<char> moves;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      moves.push_back(may_move(steps_[i], first + static_cast<std::int32_t>(i)));
      if (moves.back()) mark_results(steps_[i]);
    }
    for (std::size_t i = steps_.size(); i-- > 0;)
      if (moves[i]) move(i);
  }

 private:
  Buffer& buffer_of(const Slice& slice) {
    return plan_.buffers[static_cast<std::size_t>(slice.buffer)];
  }

  bool may_move(const Step& step, std::int32_t number) {
    for (std::size_t i = 0; i < step.slices.size(); ++i) {
      const Buffer& buffer = buffer_of(step.slices[i]);
      if (writes(step, i)) {
        if (buffer.role != Role::scratch) return false;
        continue;
      }
      const bool saved_tile = buffer.role == Role::saved && buffer.kind == Kind::tile;
      if (saved_tile && buffer.last_step == number) return false;
      if (buffer.role != Role::input && buffer.role != Role::saved &&
          !early_[static_cast<std::size_t>(step.slices[i].buffer)])
        return false;
    }
    return true;
  }

  void mark_results(const Step& step) {
    for (std::size_t i = 0; i < step.slices.size(); ++i)
      if (writes(step, i)) early_[static_cast<std::size_t>(step.slices[i].buffer)] = 1;
  }

  bool touches_result_of(const Step& later, const Step& step) const {
    for (std::size_t i = 0; i < step.slices.size(); ++i)
      for (const Slice& slice : later.slices)
        if (writes(step, i) && slice.buffer == step.slices[i].buffer) return true;
    return false;
  }

  void move(std::size_t from) {
    std::size_t to = from + 1;
    while (to < steps_.size() && !touches_result_of(steps_[to], steps_[from])) ++to;
    if (to == steps_.size()) return;
    const auto at = [&](std::size_t i) { return steps_.begin() + static_cast<std::ptrdiff_t>(i); };
    std::rotate(at(from), at(from + 1), at(to));
  }

  Plan& plan_;
  std::vector<Step>& steps_;
  std::vector<char> early_;  ///< buffers made of inputs and saved values
};

}  // namespace

void set_lifetimes(Plan& plan) {
  std::vector<char> seen(plan.buffers.size(), 0);
  std::int32_t number = 0;
  for (const auto* steps : {&plan.forward, &plan.backward}) {
    for (const Step& step : *steps) {
      for (const Slice& slice : step.slices) {
        const auto index = static_cast<std::size_t>(slice.buffer);
        if (!seen[index]) plan.buffers[index].first_step = number;
        seen[index] = 1;
        plan.buffers[index].last_step = number;
      }
      ++number;
    }
  }
}

void delay_repeated(Plan& plan) {
  Delay(plan).run();
  set_lifetimes(plan);
}

}  // namespace coda
