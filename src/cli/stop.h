// How a training run is asked to stop: by signals, or by a reader of its output who leaves.
#pragma once

#include <string>

namespace coda {

/// While it lives, a run is being set up: files are read, and what is made of them has no name yet.
/// A signal then says farewell and ends the process with exit code 0. Afterwards the first Ctrl-C,
/// SIGTERM or hang-up of the terminal, and a reader of the output who leaves (`| head`), only make
/// stop_asked() true; a second signal kills. What the caller had the process ignore (a hang-up
/// under nohup, Ctrl-C in the background of a script) stays ignored. A file that the limits of the
/// process do not let grow is an error like a full disk, not the end of the process.
class SettingUp {
 public:
  explicit SettingUp(std::string farewell);
  ~SettingUp() { end(); }
  SettingUp(const SettingUp&) = delete;
  SettingUp& operator=(const SettingUp&) = delete;
  void end();
};

bool stop_asked();

/// If standard output has a reader no more: what could not be written there is forgotten, so that
/// it is no error at the end.
void forgive_lost_reader();

}  // namespace coda
