#include "cli/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdint>
#include <functional>
#include <string_view>
#include <system_error>

namespace coda {
namespace {

template <class Number>
std::errc parse(std::string_view text, Number& number) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec == std::errc() && result.ptr != text.data() + text.size()) {
    return std::errc::invalid_argument;
  }
  return result.ec;
}

/// What the text is instead of a Number; "" if it is one.
template <class Number>
std::string complaint_about(const char* kind, const std::string& text) {
  Number number{};
  const std::errc error = parse(text, number);
  if (error == std::errc()) return "";
  return fmt::format("expected {}{}, got {}", kind,
                     error == std::errc::result_out_of_range ? " that fits in 64 bits" : "",
                     quoted(text));
}

/// The subcommand that was being parsed, as the user wrote it.
std::string command_of(const CLI::App& app) {
  std::string command = "coda";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    command += " " + at->get_name();
  }
  return command;
}

std::string commands_of(const CLI::App& app) {
  std::string names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names += (names.empty() ? "" : ", ") + sub->get_name();
  return names;
}

std::string after(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  return std::string(at == std::string_view::npos ? text : text.substr(at + mark.size()));
}

std::string before(std::string_view text, std::string_view mark) {
  return std::string(text.substr(0, text.find(mark)));
}

}  // namespace

std::string quoted(const std::string& text) {
  if (text.empty()) return "nothing";
  std::string shown = "\"";
  for (const char c : text) shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return shown + "\"";
}

void check_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = before(option->get_type_name(), "=");
    std::function<std::string(std::string&)> complaint;
    if (type == "INT") {
      complaint = [](auto& text) { return complaint_about<std::int64_t>("a whole number", text); };
    } else if (type == "UINT") {
      complaint = [](auto& text) {
        return complaint_about<std::uint64_t>("a whole number of 0 or more", text);
      };
    } else if (type == "FLOAT") {
      complaint = [](auto& text) { return complaint_about<double>("a number", text); };
    }
    if (complaint) option->check(CLI::Validator(complaint, ""));
  }
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) check_numbers(*sub);
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const std::string what = error.what(), command = command_of(app);
  const std::string option = before(what, ":");
  std::string text = what;
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::ExtrasError:
      if (command == "coda" && app.remaining(true).size() == 1) {
        const std::string word = app.remaining(true)[0];
        text =
            fmt::format("expected one of the commands {}, got {}", commands_of(app), quoted(word));
        break;
      }
      text = fmt::format("{}expected a command and its options only, got {}",
                         command == "coda" ? "" : after(command, " ") + ": ",
                         quoted(fmt::format("{}", fmt::join(app.remaining(true), " "))));
      break;
    case CLI::ExitCodes::RequiredError:
      text = fmt::format("{}: expected a value, got none", before(what, " is required"));
      break;
    case CLI::ExitCodes::ConversionError:  // "Could not convert: --threads = 3000000000"
      text = fmt::format("{}: expected a value that fits, got {}",
                         before(after(what, "convert: "), " = "), quoted(after(what, " = ")));
      break;
    case CLI::ExitCodes::ArgumentMismatch:
      text = fmt::format(
          "{}: expected one value, got {}", option,
          what.find("received ") == std::string::npos ? "none" : after(what, "received "));
      break;
    case CLI::ExitCodes::ValidationError:
      if (what.find(" not in {") == std::string::npos) break;  // a validator of coda's own
      text = fmt::format("{}: expected one of {}, got {}", option,
                         before(after(what, " not in {"), "}"),
                         quoted(before(after(what, ": "), " not in {")));
      break;
    default:
      break;
  }
  return fmt::format("{}. See `{} --help`.", text, command);
}

}  // namespace coda
