// What the command line's parser refuses, said in coda's own words: where, what was expected, what
// came, how to fix it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace coda {

/// Makes every number that an option takes be checked as text first: what is no number, or does not
/// fit, is then refused with what was written. To be called once all options are there.
void check_numbers(CLI::App& app);

/// The message for an error of the parser of `app`.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

/// The text in quotes, without control characters; "nothing" if it is empty.
std::string quoted(const std::string& text);

}  // namespace coda
