#include "train/tokenizer_split.h"

#include <algorithm>

namespace coda {
namespace {

using Visit = std::function<void(std::string_view)>;

struct Part {
  std::size_t begin, end;
  bool matched;
};

/// visit(part) for the matches and what lies between them; empty parts as well.
template <class See>
void for_each_part(const Regex& pattern, std::string_view text, See see) {
  std::size_t done = 0;
  for (std::size_t from = 0; from <= text.size();) {
    const Regex::Match match = pattern.find(text, from);
    if (!match.found()) break;
    if (done < match.begin) see(Part{done, match.begin, false});
    see(Part{match.begin, match.end, true});
    done = match.end;
    from = match.end;
    if (match.begin == match.end) {  // an empty match: look on behind the next character
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
    }
  }
  if (done < text.size()) see(Part{done, text.size(), false});
}

/// Joins parts as the behaviour asks; walking backwards joins a match with what follows it.
std::vector<Part> joined(std::vector<Part> parts, SplitBehavior behavior) {
  const bool backwards = behavior == SplitBehavior::merged_with_next;
  if (backwards) std::reverse(parts.begin(), parts.end());
  std::vector<Part> out;
  bool previous = false;
  for (const Part& part : parts) {
    const bool joins = behavior == SplitBehavior::contiguous ? part.matched == previous
                                                             : part.matched && !previous;
    if (joins && !out.empty()) {
      out.back().begin = std::min(out.back().begin, part.begin);
      out.back().end = std::max(out.back().end, part.end);
    } else {
      out.push_back(part);
    }
    previous = part.matched;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

void split_from(const std::vector<SplitStep>& steps, std::size_t step, std::string_view text,
                const Visit& visit) {
  if (text.empty()) return;
  if (step == steps.size()) return visit(text);
  const SplitStep& s = steps[step];
  const auto pass_on = [&](const Part& part) {
    split_from(steps, step + 1, text.substr(part.begin, part.end - part.begin), visit);
  };
  if (s.behavior == SplitBehavior::isolated) return for_each_part(s.pattern, text, pass_on);
  std::vector<Part> parts;
  for_each_part(s.pattern, text, [&](Part part) {
    part.matched = part.matched != s.invert;
    parts.push_back(part);
  });
  if (s.behavior == SplitBehavior::removed) {
    std::erase_if(parts, [](const Part& part) { return part.matched; });
  } else {
    parts = joined(std::move(parts), s.behavior);
  }
  for (const Part& part : parts) pass_on(part);
}

}  // namespace

void split_words(const std::vector<SplitStep>& steps, std::string_view text, const Visit& visit) {
  split_from(steps, 0, text, visit);
}

}  // namespace coda
