// From --data to the token stream, with what the user is told on the way.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"
#include "train/data_tokens.h"

namespace coda {

/// Lists the texts; notes binary files that are skipped.
Texts open_texts(const std::vector<std::string>& paths, const std::string& text_field,
                 const Printer& output);

/// The texts' tokens: those of the file `kept` if it was made from them, else read now into a file
/// in `folder`. fresh: they were read. Notes damage to `kept` and replaced characters.
struct LoadedTokens {
  TokenFile file;
  bool fresh;
};
LoadedTokens load_tokens(const Texts& texts, const Tokenizer& tokenizer,
                         const std::filesystem::path& kept, const std::filesystem::path& folder,
                         const Printer& output);

/// The folder itself, or the nearest one above it that exists.
std::filesystem::path existing_folder(const std::filesystem::path& folder);

}  // namespace coda
