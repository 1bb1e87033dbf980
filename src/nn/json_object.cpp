#include "nn/json_object.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"

namespace coda {

using nlohmann::json;

namespace {

constexpr int kDepthLimit = 16;  // printing a value recurses once a level

}  // namespace

json parse_json_object(std::string_view text, std::string_view where) {
  std::set<std::string> keys;
  std::string duplicate;
  const auto on_event = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kDepthLimit) {
      throw_error<UsageError>("{}: expected at most {} levels of nesting.", where, kDepthLimit);
    }
    if (event == json::parse_event_t::key && depth == 1) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.insert(key).second) duplicate = key;
    }
    return true;
  };
  json object;
  try {
    object = json::parse(text, on_event);
  } catch (const json::parse_error& e) {
    throw_error<UsageError>("{}: expected a JSON object, got a syntax error at byte {}.", where,
                            e.byte);
  } catch (const json::exception&) {  // a number beyond double
    throw_error<UsageError>("{}: expected a JSON object, got a number out of range.", where);
  }
  if (!object.is_object()) {
    throw_error<UsageError>("{}: expected a JSON object, got {}.", where, excerpt(object));
  }
  if (!duplicate.empty()) {
    throw_error<UsageError>("{}: expected unique names, got {} twice.", where, excerpt(duplicate));
  }
  return object;
}

std::string excerpt(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace coda
