#include "cli/stop.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>

namespace coda {
namespace {

volatile std::sig_atomic_t g_stop = 0;
volatile std::sig_atomic_t g_reader_left = 0;
volatile std::sig_atomic_t g_leaves_at_once = 0;
std::string g_farewell;

void on_signal(int) {
  if (g_leaves_at_once == 0) {
    g_stop = 1;
    return;
  }
  const ssize_t written = ::write(STDERR_FILENO, g_farewell.data(), g_farewell.size());
  ::_exit(written < 0 ? 1 : 0);
}

void on_lost_reader(int) {
  g_stop = 1;
  g_reader_left = 1;
}

void handle_signals() {
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = on_lost_reader;
  sigaction(SIGPIPE, &action, nullptr);
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    sigaction(signal, &action, &before);
    if (signal != SIGTERM && before.sa_handler == SIG_IGN) std::signal(signal, SIG_IGN);
  }
  action.sa_handler = SIG_IGN;
  action.sa_flags = 0;
  sigaction(SIGXFSZ, &action, nullptr);
}

}  // namespace

SettingUp::SettingUp(std::string farewell) {
  g_farewell = std::move(farewell);
  g_leaves_at_once = 1;
  handle_signals();
}

void SettingUp::end() { g_leaves_at_once = 0; }

bool stop_asked() { return g_stop != 0; }

void forgive_lost_reader() {
  if (g_reader_left == 0 || std::ferror(stdout) == 0) return;
  if (std::freopen("/dev/null", "w", stdout) == nullptr) std::clearerr(stdout);
}

}  // namespace coda
