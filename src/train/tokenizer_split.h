// Pre-tokenisers: how a text is cut into the words within which pieces are merged.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "train/tokenizer_regex.h"

namespace coda {

/// What becomes of the parts that a pattern matches (Hugging Face's names).
enum class SplitBehavior { removed, isolated, contiguous, merged_with_previous, merged_with_next };

struct SplitStep {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  ///< what lies between matches counts as matched
};

/// Each step cuts the parts that the one before left; visit(word) sees the last one's, in order.
void split_words(const std::vector<SplitStep>& steps, std::string_view text,
                 const std::function<void(std::string_view)>& visit);

}  // namespace coda
