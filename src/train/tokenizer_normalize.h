// Unicode normalisation forms, as Hugging Face's tokenizers compute them.
#pragma once

#include <string>
#include <string_view>

namespace coda {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// `text` is valid UTF-8. Characters of Unicode 10 and later have no combining class and form no
/// compositions here, as in the tables that tokenizers uses (version 0.23).
std::string normalized(std::string_view text, NormalForm form);

}  // namespace coda
