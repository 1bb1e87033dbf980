#include "cli/config_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "cli/usage.h"
#include "nn/json_object.h"
#include "train/file.h"

namespace coda {
namespace {

using nlohmann::json;

/// As it would stand on the command line.
std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

bool is_plain(const json& value) {
  return value.is_string() || value.is_number() || value.is_boolean();
}

CLI::Option* find_option(CLI::App& app, std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  const bool asks_for_other_things = key == "help" || key == "config" || key == "resume";
  return asks_for_other_things ? nullptr : app.get_option_no_throw("--" + key);
}

void apply(CLI::Option& option, const json& value, const std::string& where) {
  const bool flag = option.get_expected_max() == 0;
  const bool several = option.get_expected_max() > 1;
  const bool fits = value.is_array() ? several && std::all_of(value.begin(), value.end(), is_plain)
                                     : is_plain(value) && (!flag || value.is_boolean());
  if (!fits) {
    throw_error<UsageError>("{}: expected {}, got {}.", where,
                            flag      ? "true or false"
                            : several ? "a list of values"
                                      : "a value",
                            excerpt(value));
  }
  if (value.is_array()) {
    for (const json& element : value) option.add_result(text_of(element));
  } else {
    option.add_result(text_of(value));
  }
  try {
    if (option.count() > 0) option.run_callback();
  } catch (const CLI::ParseError& error) {
    const std::string what = error.what();
    const std::size_t colon = what.find(": ");
    throw_error<UsageError>("{}: {}.", where,
                            colon == std::string::npos ? what : what.substr(colon + 2));
  }
}

}  // namespace

void apply_config(CLI::App& app, const std::string& path) {
  const std::string file = "--config: " + path;
  const auto text = [&] {
    try {
      return read_file(path);
    } catch (const UsageError& e) {
      throw_error<UsageError>("--config: {}", e.what());
    }
  };
  const json object = parse_json_object(text(), file);
  for (const auto& [key, value] : object.items()) {
    if (key == "data_hash" || value.is_null()) continue;
    CLI::Option* option = find_option(app, key);
    const std::string where = file + ": " + key;
    if (option == nullptr) {
      throw_error<UsageError>(
          "{}: expected an option of `coda {}`, as its --help lists them (d_model for --d-model), "
          "got another key.",
          where, app.get_name());
    }
    if (option->count() == 0) apply(*option, value, where);
  }
}

}  // namespace coda
