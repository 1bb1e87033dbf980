// --config: options of a subcommand from a JSON file. The command line has the last word.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace coda {

/// Gives `app` the options of the file that were not given already. A key is an option's name with
/// underscores, as in RUN/options.json, whose data_hash is passed over; lists are for options that
/// take several values, true and false for those that take none. Throws UsageError that names file
/// and key.
void apply_config(CLI::App& app, const std::string& path);

}  // namespace coda
