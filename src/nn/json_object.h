// Reading JSON that others wrote: no text, however broken or deep, may crash, and messages stay
// short.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace coda {

/// Parses an object. Throws UsageError, opening with `where`, for anything else, for a name given
/// twice (parsers otherwise keep the last silently) and beyond 16 levels of nesting.
nlohmann::json parse_json_object(std::string_view text, std::string_view where);

/// The value on one line of at most 80 bytes, for a message.
std::string excerpt(const nlohmann::json& value);

}  // namespace coda
