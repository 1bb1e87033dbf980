// What every subcommand shares: how it registers itself, where its text goes, which backend runs.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "backend/backend.h"
#include "cli/print.h"

namespace coda {

/// A subcommand: its parser, and what runs once parsing succeeded. Returns the exit code.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

Command add_train(CLI::App& app);
Command add_eval(CLI::App& app);
Command add_generate(CLI::App& app);
Command add_verify(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_check(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_bench_gemm(CLI::App& bench);
Command add_bench_generate(CLI::App& bench);
Command add_bench_train(CLI::App& bench);
Command add_tokenize(CLI::App& app);
Command add_info(CLI::App& app);

/// --json: one object a line on stdout and nothing else. Otherwise results go to stdout and what
/// happens meanwhile to stderr.
class Printer {
 public:
  void add_option(CLI::App& app);
  bool json() const { return json_; }

  void object(const nlohmann::ordered_json& object) const;  ///< with --json only

  template <class... Args>
  void result(fmt::format_string<Args...> format, Args&&... args) const {
    if (!json_) print_to(stdout, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) const {
    if (!json_) print_to(stderr, format, std::forward<Args>(args)...);
  }

 private:
  bool json_ = false;
};

/// Of an unsigned option: CLI11 by itself reads -1 as a huge number.
CLI::Validator whole_number();

/// --device and --threads.
struct DeviceOptions {
  std::string device = "cpu";
  int threads = 0;

  void add_options(CLI::App& app);
  /// Throws UsageError for an unknown device.
  std::unique_ptr<Backend> make() const;
};

}  // namespace coda
