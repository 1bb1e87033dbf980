// coda: one program, one subcommand a file. Exit codes: 0 done, 2 wrong input or usage, 1 all else.
#include <exception>
#include <new>

#include "cli/command.h"
#include "coda/error.h"
#include "coda/version.h"

namespace coda {
namespace {

int run(int argc, char** argv) {
  CLI::App app{"Transformers as GEMM-plus-epilogue programs, derived from plain math."};
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(0, 1);
  app.failure_message(CLI::FailureMessage::simple);
  app.footer(
      "Exit codes: 0 done, 2 wrong input or usage, 1 everything else.\n"
      "Example:\n"
      "  coda train --data book.txt --out run && coda generate --model run --prompt \"The \"\n"
      "`coda COMMAND --help` explains a command.");
  const Command commands[] = {add_train(app),    add_eval(app),   add_generate(app),
                              add_tokenize(app), add_verify(app), add_explain(app),
                              add_check(app),    add_bench(app),  add_info(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;  // --help and --version end here as well
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  fmt::print(stderr, "coda: expected a command, got none.\n\n{}", app.help());
  return 2;
}

}  // namespace
}  // namespace coda

int main(int argc, char** argv) {
  try {
    return coda::run(argc, argv);
  } catch (const coda::UsageError& e) {
    fmt::print(stderr, "coda: {}\n", e.what());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "coda: out of memory. Use a smaller model, --batch or --seq.\n");
  } catch (const std::exception& e) {
    fmt::print(stderr, "coda: {}\n", e.what());
  }
  return 1;
}
