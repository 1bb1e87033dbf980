#include "plan/pieces.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/opaque.h"
#include "plan/delay.h"
#include "plan/pieces_programs.h"

namespace coda {
namespace {

bool writes(const Step& step, std::size_t slice) {
  return step.program ? step.program->operands[slice].output
                      : static_cast<std::int32_t>(slice) >= step.n_inputs;
}

std::string_view name_of(const Step& step) {
  return step.program ? std::string_view(step.program->name) : row_of(step.opaque).name;
}

bool is_tokens(Dim dim) { return dim.symbol == Dim::Symbol::M; }

/// Results that are sums over rows: weight gradients too.
bool sums_rows(const Step& step) {
  if (!step.program) return false;
  const Program& program = *step.program;
  return program.form == Form::gemm ? is_tokens(program.gemm.k) : sums_vectors(step);
}

/// A value for each row, or a partial for each kRowGranule of them.
bool follows_rows(const Buffer& buffer) {
  if (buffer.partial && buffer.granules == kTokens) return true;
  return buffer.rows == kTokens && (buffer.kind == Kind::tile || buffer.kind == Kind::col);
}

class Pieces {
 public:
  Pieces(Plan& plan, std::int32_t count)
      : plan_(plan), count_(count), forward_(plan.forward.size()), steps_(plan.forward) {
    steps_.insert(steps_.end(), plan.backward.begin(), plan.backward.end());
    local_.assign(plan.buffers.size(), 0);
  }

  void run() {
    const std::string obstacle = find_steps();
    if (!obstacle.empty()) {
      plan_.rewrites.push_back(fmt::format("pieces: none, since {}", obstacle));
      return;
    }
    take_addends_out();
    write_note();
    emit();
    drop_unused();
    set_lifetimes(plan_);
    set_roles();
  }

 private:
  /// What keeps the plan from being cut; nothing: "".
  std::string find_steps() {
    find_tile();
    if (tile_ < 0) return "forward ends in no tile that backward reads";
    split_vectors();
    mark_after(writers(tile_)[0]);
    member_.assign(steps_.size(), 0);
    early_.assign(steps_.size(), 0);
    addend_.assign(steps_.size(), -1);
    find_members();
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (!member_[s]) continue;
      std::string obstacle = find_obstacle(s);
      if (!obstacle.empty()) return fmt::format("{} {}", name_of(steps_[s]), obstacle);
    }
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (!member_[s]) continue;
      std::string late = require(s);
      if (!late.empty()) return fmt::format("{} reads {}", name_of(steps_[s]), late);
    }
    return "";
  }

  /// The widest of those that forward makes nothing of but vectors.
  void find_tile() {
    std::int64_t most = 0;
    for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
      const Buffer& buffer = plan_.buffers[b];
      const bool is_tile = buffer.kind == Kind::tile && buffer.rows == kTokens && !buffer.partial;
      if (buffer.role != Role::saved || !is_tile || buffer.cols <= most) continue;
      const std::vector<std::size_t> makers = writers(static_cast<std::int32_t>(b));
      if (makers.size() != 1 || !ends_forward(makers[0])) continue;
      most = buffer.cols;
      tile_ = static_cast<std::int32_t>(b);
    }
  }

  bool ends_forward(std::size_t maker) {
    mark_after(maker);
    for (std::size_t s = maker + 1; s < forward_; ++s) {
      const Step& step = steps_[s];
      if (after_[s] && (!step.program || step.program->form != Form::vectors)) return false;
    }
    return true;
  }

  /// All that depends on what a step makes, in forward and backward.
  void mark_after(std::size_t maker) {
    after_.assign(steps_.size(), 0);
    made_.assign(plan_.buffers.size(), 0);
    for (std::size_t s = maker; s < steps_.size(); ++s) {
      after_[s] = s == maker;
      for (std::size_t i = 0; i < steps_[s].slices.size(); ++i)
        if (!writes(steps_[s], i) && made_[buffer_at(s, i)]) after_[s] = 1;
      for (std::size_t i = 0; i < steps_[s].slices.size() && after_[s]; ++i)
        if (writes(steps_[s], i)) made_[buffer_at(s, i)] = 1;
    }
  }

  /// What forward's vector programs make without the tile, such as how many labels count, leaves
  /// those that need it.
  void split_vectors() {
    mark_after(writers(tile_)[0]);
    for (std::size_t s = 0; s < forward_; ++s) {
      if (!after_[s] || !steps_[s].program || steps_[s].program->form != Form::vectors) continue;
      const auto& values = steps_[s].program->values;
      std::vector<char> late(values.size(), 0), early_store(late), late_store(late);
      for (std::size_t v = 0; v < values.size(); ++v) {
        const Value& value = values[v];
        const bool store = value.op == Op::store_vector || value.op == Op::store_partial;
        for (const std::int32_t arg : value.args) late[v] |= late[static_cast<std::size_t>(arg)];
        if (value.operand >= 0 && !store)
          late[v] |= made_[buffer_at(s, static_cast<std::size_t>(value.operand))];
        (late[v] ? late_store : early_store)[v] = store;
      }
      if (std::find(early_store.begin(), early_store.end(), 1) == early_store.end()) continue;
      Step known = with_stores(steps_[s], early_store);
      auto named = std::make_shared<Program>(*known.program);
      named->name += "_known";
      known.program = std::move(named);
      steps_[s] = with_stores(steps_[s], late_store);
      steps_.insert(steps_.begin() + static_cast<std::ptrdiff_t>(s), std::move(known));
      ++forward_;
      mark_after(writers(tile_)[0]);
    }
  }

  /// Steps that touch the tile or one as wide made of it, and sums of what they make; then what
  /// only they touch.
  void find_members() {
    local_[static_cast<std::size_t>(tile_)] = 1;
    for (bool grows = true; grows;) {
      grows = false;
      for (std::size_t s = 0; s < steps_.size(); ++s) {
        const auto& slices = steps_[s].slices;
        const bool touches = std::any_of(slices.begin(), slices.end(), [&](const Slice& slice) {
          return local_[static_cast<std::size_t>(slice.buffer)] != 0;
        });
        if (!touches || member_[s]) continue;
        member_[s] = 1;
        grows = true;
        for (std::size_t i = 0; i < slices.size(); ++i) {
          const Buffer& buffer = plan_.buffers[buffer_at(s, i)];
          if (writes(steps_[s], i) && is_own_rows(buffer) && buffer.cols >= tile().cols)
            local_[buffer_at(s, i)] = 1;
        }
      }
    }
    for (std::size_t s = 0; s < steps_.size(); ++s)
      if (sums_vectors(steps_[s]) && reads_members_only(s)) member_[s] = 1;
    for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
      if (is_own_rows(plan_.buffers[b]) && touched_by_members_only(b)) local_[b] = 1;
    }
  }

  /// Of what depends on the tile.
  bool reads_members_only(std::size_t s) const {
    for (std::size_t i = 0; i < steps_[s].slices.size() && after_[s]; ++i)
      for (const std::size_t writer : writers(steps_[s].slices[i].buffer))
        if (!writes(steps_[s], i) && after_[writer] && !member_[writer]) return false;
    return after_[s] != 0;
  }

  static bool is_own_rows(const Buffer& buffer) {
    const bool own = buffer.role == Role::saved || buffer.role == Role::scratch;
    return own && buffer.rows == kTokens && follows_rows(buffer);
  }

  bool touched_by_members_only(std::size_t b) const {
    bool any = false;
    for (std::size_t s = 0; s < steps_.size(); ++s)
      for (const Slice& slice : steps_[s].slices) {
        if (static_cast<std::size_t>(slice.buffer) != b) continue;
        if (!member_[s]) return false;
        any = true;
      }
    return any;
  }

  /// Why a member cannot run piece by piece; it can: "". Notes its addend.
  std::string find_obstacle(std::size_t s) {
    const Step& step = steps_[s];
    if (!step.program) return "has a kernel of its own";
    const Program& program = *step.program;
    for (std::size_t i = 0; i < step.slices.size(); ++i) {
      const Buffer& buffer = plan_.buffers[buffer_at(s, i)];
      if (buffer.kind == Kind::list) return "reads a list";
      if (!writes(step, i) && buffer.partial && buffer.granules == kTokens)
        return "reads a sum over all rows";
      if (writes(step, i) && !sums_rows(step) && !follows_rows(buffer))
        return fmt::format("writes {}, which is no value of a row", buffer.name);
    }
    if (program.form == Form::vectors) return sums_vectors(step) ? "" : "finishes vectors";
    if (sums_rows(step)) return find_addend(s);
    if (!is_tokens(program.rows)) return "has rows of a weight";
    for (const std::int32_t b : program.gemm.b)
      if (program.form == Form::gemm && step.slices[static_cast<std::size_t>(b)].rows == kTokens)
        return "multiplies two tiles";
    return "";
  }

  /// Sums of pieces are sums of products: stored in f32 as they are, or added to one addend that
  /// an opaque step can add afterwards.
  std::string find_addend(std::size_t s) {
    const Program& program = *steps_[s].program;
    std::vector<char> sum(program.values.size(), 0), addend(program.values.size(), 0);
    for (std::size_t v = 0; v < program.values.size(); ++v) {
      const Value& value = program.values[v];
      const auto is = [&](const std::vector<char>& set, std::size_t arg) {
        return arg < value.args.size() && set[static_cast<std::size_t>(value.args[arg])] != 0;
      };
      const Operand* operand =
          value.operand < 0 ? nullptr : &program.operands[static_cast<std::size_t>(value.operand)];
      if (value.op == Op::acc || ((value.op == Op::cols || value.op == Op::rows) && is(sum, 0))) {
        sum[v] = 1;
      } else if (value.op == Op::load_tile && addend_[s] < 0) {
        addend[v] = 1;
        addend_[s] = value.operand;
      } else if (value.op == Op::add &&
                 ((is(sum, 0) && is(addend, 1)) || (is(addend, 0) && is(sum, 1)))) {
        sum[v] = 1;
      } else if (value.op != Op::store_tile || !is(sum, 0) || operand->dtype != DType::f32) {
        return "does more with a sum over rows than to store it in f32";
      }
    }
    return addend_[s] < 0 || adder_of(s) >= 0 ? "" : "adds what cannot be added afterwards";
  }

  /// The opaque step that writes the member's addend and can add it to the sum instead.
  std::int32_t adder_of(std::size_t s) const {
    const std::size_t table = buffer_at(s, static_cast<std::size_t>(addend_[s]));
    std::int32_t target = -1, adder = -1, users = 0;
    for (std::size_t i = 0; i < steps_[s].slices.size(); ++i)
      if (writes(steps_[s], i)) target = target < 0 ? steps_[s].slices[i].buffer : plan_size();
    for (std::size_t other = 0; other < steps_.size(); ++other)
      for (const Slice& slice : steps_[other].slices) {
        if (static_cast<std::size_t>(slice.buffer) != table) continue;
        ++users;
        if (other != s) adder = static_cast<std::int32_t>(other);
      }
    if (users != 2 || adder < 0 || target < 0 || target == plan_size()) return -1;
    const Step& step = steps_[static_cast<std::size_t>(adder)];
    const Buffer& from = plan_.buffers[table];
    const Buffer& to = plan_.buffers[static_cast<std::size_t>(target)];
    const bool adds = !step.program && row_of(step.opaque).accumulates &&
                      after_[static_cast<std::size_t>(adder)] != 0;
    const bool alike = from.role == Role::scratch && from.dtype == to.dtype &&
                       from.rows == to.rows && from.cols == to.cols;
    return adds && alike ? adder : -1;
  }

  /// Marks what must run before the pieces for a step's sake; says what it reads that cannot.
  std::string require(std::size_t s) {
    for (std::size_t i = 0; i < steps_[s].slices.size(); ++i) {
      const bool added = member_[s] && static_cast<std::int32_t>(i) == addend_[s];
      if (writes(steps_[s], i) || added) continue;
      for (const std::size_t writer : writers(steps_[s].slices[i].buffer)) {
        if (member_[writer] || early_[writer]) continue;
        if (after_[writer])
          return fmt::format("{}, which depends on all rows of {}",
                             plan_.buffers[buffer_at(s, i)].name, tile().name);
        early_[writer] = 1;
        std::string late = require(writer);
        if (!late.empty()) return late;
      }
    }
    return "";
  }

  void take_addends_out() {
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (!member_[s] || addend_[s] < 0) continue;
      Step& step = steps_[s];
      Step& adder = steps_[static_cast<std::size_t>(adder_of(s))];
      const auto is_result = [&](std::size_t i) { return writes(step, i); };
      std::size_t result = 0;
      while (!is_result(result)) ++result;
      adder.slices.back() = step.slices[result];
      adder.accumulates = true;
      step.program = without_addend(*step.program, addend_[s]);
      step.slices.erase(step.slices.begin() + addend_[s]);
    }
  }

  void write_note() {
    std::string text =
        fmt::format("pieces: {} in {} pieces of rows, in backward: ", tile().name, count_);
    std::string summed, late;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (member_[s])
        text += fmt::format("{}{}", text.ends_with(' ') ? "" : ", ", name_of(steps_[s]));
      for (std::size_t i = 0; i < steps_[s].slices.size(); ++i) {
        if (!writes(steps_[s], i)) continue;
        const Buffer& buffer = plan_.buffers[buffer_at(s, i)];
        if (member_[s] && sums_rows(steps_[s])) summed += fmt::format(" {}", buffer.name);
        if (s < forward_ && after_[s] && buffer.role == Role::output)
          late += fmt::format(" {}", buffer.name);
      }
    }
    if (!summed.empty()) text += fmt::format("; summed piece after piece:{}", summed);
    if (!late.empty()) text += fmt::format("; not written by forward:{}", late);
    plan_.rewrites.push_back(std::move(text));
  }

  void emit() {
    plan_.forward.clear();
    plan_.backward.clear();
    for (std::size_t s = 0; s < forward_; ++s)
      if (!after_[s]) plan_.forward.push_back(steps_[s]);
    for (std::size_t s = forward_; s < steps_.size(); ++s)
      if (early_[s]) plan_.backward.push_back(steps_[s]);
    std::vector<std::shared_ptr<const Program>> more(steps_.size());
    for (std::size_t s = 0; s < steps_.size(); ++s)
      if (member_[s] && sums_rows(steps_[s])) more[s] = adding(*steps_[s].program);
    for (std::int32_t index = 0; index < count_; ++index) emit_piece({index, count_}, more);
    for (std::size_t s = 0; s < steps_.size(); ++s)
      if (!member_[s] && !early_[s] && (s >= forward_ || after_[s]))
        plan_.backward.push_back(steps_[s]);
  }

  void emit_piece(Piece piece, const std::vector<std::shared_ptr<const Program>>& more) {
    std::vector<std::int32_t> copies(local_.size(), -1);
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (!member_[s]) continue;
      Step step = steps_[s];
      step.piece = piece;
      if (more[s] && piece.index > 0) step.program = more[s];
      for (Slice& slice : step.slices) {
        const auto b = static_cast<std::size_t>(slice.buffer);
        if (!local_[b]) continue;
        if (copies[b] < 0) copies[b] = add_copy(b, piece);
        slice.buffer = copies[b];
      }
      plan_.backward.push_back(std::move(step));
    }
  }

  std::int32_t add_copy(std::size_t b, Piece piece) {
    Buffer copy = plan_.buffers[b];
    copy.role = Role::scratch;
    copy.piece = piece;
    copy.name += fmt::format(".piece{}", piece.index + 1);
    while (plan_.find_buffer(copy.name) >= 0) copy.name += "_";
    plan_.buffers.push_back(std::move(copy));
    return static_cast<std::int32_t>(plan_.buffers.size()) - 1;
  }

  /// The plan's own buffers that no step touches any longer go.
  void drop_unused() {
    std::vector<char> used(plan_.buffers.size(), 0);
    for (auto* steps : {&plan_.forward, &plan_.backward})
      for (Step& step : *steps)
        for (Slice& slice : step.slices) used[static_cast<std::size_t>(slice.buffer)] = 1;
    std::vector<std::int32_t> place(plan_.buffers.size(), -1);
    std::vector<Buffer> kept;
    for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
      const Role role = plan_.buffers[b].role;
      if (!used[b] && (role == Role::saved || role == Role::scratch)) continue;
      place[b] = static_cast<std::int32_t>(kept.size());
      kept.push_back(std::move(plan_.buffers[b]));
    }
    plan_.buffers = std::move(kept);
    for (auto* steps : {&plan_.forward, &plan_.backward})
      for (Step& step : *steps)
        for (Slice& slice : step.slices)
          slice.buffer = place[static_cast<std::size_t>(slice.buffer)];
  }

  void set_roles() {
    const auto begin = static_cast<std::int32_t>(plan_.forward.size());
    for (Buffer& buffer : plan_.buffers) {
      if (buffer.role != Role::saved && buffer.role != Role::scratch) continue;
      const bool saved = buffer.first_step < begin && buffer.last_step >= begin;
      buffer.role = saved ? Role::saved : Role::scratch;
    }
  }

  const Buffer& tile() const { return plan_.buffers[static_cast<std::size_t>(tile_)]; }
  std::int32_t plan_size() const { return static_cast<std::int32_t>(plan_.buffers.size()); }
  std::size_t buffer_at(std::size_t s, std::size_t slice) const {
    return static_cast<std::size_t>(steps_[s].slices[slice].buffer);
  }
  std::vector<std::size_t> writers(std::int32_t buffer) const {
    std::vector<std::size_t> found;
    for (std::size_t s = 0; s < steps_.size(); ++s)
      for (std::size_t i = 0; i < steps_[s].slices.size(); ++i)
        if (steps_[s].slices[i].buffer == buffer && writes(steps_[s], i)) found.push_back(s);
    return found;
  }

  Plan& plan_;
  std::int32_t count_;
  std::size_t forward_;               ///< how many of steps_ are forward's
  std::vector<Step> steps_;           ///< of both phases
  std::int32_t tile_ = -1;            ///< the buffer that is cut
  std::vector<char> after_;           ///< steps that depend on it
  std::vector<char> made_;            ///< buffers that do
  std::vector<char> member_;          ///< steps that run once a piece
  std::vector<char> early_;           ///< steps of backward that must run before those
  std::vector<std::int32_t> addend_;  ///< of members: operand that another step adds afterwards
  std::vector<char> local_;           ///< buffers that hold one piece
};

}  // namespace

void run_in_pieces(Plan& plan, std::int32_t count) { Pieces(plan, count).run(); }

}  // namespace coda
