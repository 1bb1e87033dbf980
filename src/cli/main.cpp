// coda: one program, one subcommand a file. Exit codes: 0 done, 2 wrong input or usage, 1 all else.
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <new>

#include "cli/command.h"
#include "cli/usage.h"
#include "coda/error.h"
#include "coda/version.h"

namespace coda {
namespace {

/// A result that could not be written is no success.
int with_output_checked(int code) {
  if (code != 0 || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0)) return code;
  print_to(stderr, "coda: cannot write to standard output: {}.\n", std::strerror(errno));
  return 1;
}

/// A stream that the caller closed must not be reopened as some file, to take what is printed:
/// its number is taken by something that can neither be read nor written.
void hold_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Transformers as GEMM-plus-epilogue programs, derived from plain math."};
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(0, 1);
  app.footer(
      "Exit codes: 0 done, 2 wrong input or usage, 1 everything else.\n"
      "Example:\n"
      "  coda train --data book.txt --out run && coda generate --model run --prompt \"The \"\n"
      "`coda COMMAND --help` explains a command.");
  const Command commands[] = {add_train(app),    add_eval(app),   add_generate(app),
                              add_tokenize(app), add_verify(app), add_explain(app),
                              add_check(app),    add_bench(app),  add_info(app)};
  check_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help and --version
    throw UsageError(usage_message(app, e));
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return with_output_checked(command.run());
  }
  print_to(stderr, "coda: expected a command, got none.\n\n{}", app.help());
  return 2;
}

}  // namespace
}  // namespace coda

int main(int argc, char** argv) {
  coda::hold_standard_streams();
  try {
    return coda::run(argc, argv);
  } catch (const coda::UsageError& e) {
    coda::print_to(stderr, "coda: {}\n", e.what());
    return 2;
  } catch (const std::bad_alloc&) {
    coda::print_to(stderr, "coda: out of memory. Use a smaller model, --batch or --seq.\n");
  } catch (const std::exception& e) {
    coda::print_to(stderr, "coda: {}\n", e.what());
  }
  return 1;
}
