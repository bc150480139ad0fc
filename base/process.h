// Starting a child process and knowing exactly why it could not be started.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/exit_codes.h"
#include "base/fd.h"

namespace hvd {

struct SpawnSpec {
  std::string program;                   // a path; see find_program
  std::vector<std::string> argv;         // argv[0] included
  std::vector<std::string> environment;  // NAME=VALUE
  std::string workdir;                   // empty: the parent's
  int in = -1, out = -1, err = -1;       // descriptors for 0, 1, 2; -1: /dev/null
  std::vector<unsigned> processors;      // it may run on; empty: the parent's
  bool new_session = false;
  bool die_with_parent = false;  // KILL when the thread that spawned it ends
  uint64_t file_limit = 0;       // its soft limit on open files; 0: the parent's
};

struct Child {
  pid_t pid = -1;
  Fd pidfd;  // readable when it ended
};

// A child that could not be started: which step failed and why. The code is what a shell would
// give: 127 not found, 126 cannot be run; and 70 where the machine has no room for a process now.
struct SpawnFailure {
  std::string text;
  int code = kExitCannotRun;
};

using SpawnResult = std::variant<Child, SpawnFailure>;

// Starts a child with default signal dispositions, an empty signal mask and no descriptor but
// 0, 1, 2. Returns once the program runs or could not be run.
SpawnResult spawn(const SpawnSpec& spec);

// Raises our soft limit on open files as far as it goes; returns what it was.
uint64_t raise_file_limit();

// Where `name` is, as a shell finds it: a name with a slash is taken relative to `workdir`, else
// the folders of `path` (the value of PATH) are searched. The failure is 127 or 126.
std::variant<std::string, SpawnFailure> find_program(const std::string& name,
                                                     const std::string& path,
                                                     const std::string& workdir);

// How a reaped child ended: signal is 0 if it exited by itself.
struct Ending {
  int exit_code = 0;
  int signal = 0;
};

// Reaps a child whose pidfd is readable.
Ending reap(const Child& child);

// Its letter in /proc/PID/stat: 'R', 'S', 'D', 'T', ...; 0 if it cannot be told.
char process_state(pid_t pid);

// The signal that ended a child that is not reaped yet, or 0.
int ended_by(pid_t pid);

// "SIGKILL", "SIGSEGV", ... or "signal 77".
std::string signal_name(int signal);

// Sends KILL to every descendant of the calling process, again and again until none is left or
// `limit_ms` has passed, and reaps them. The caller must be a child subreaper, so that nothing
// escapes by losing its parent. False if some are still there (in an uninterruptible sleep).
bool kill_all_descendants(int limit_ms);

// One round of the same that does not wait, for a loop to repeat. Children in `kept` are killed too
// but reaped by their owner. True when no child is left.
bool kill_descendants_once(const std::vector<pid_t>& kept);

// Sends STOP, or CONT, to every descendant of the calling process. STOP is repeated until the walk
// finds nobody new, since who is not stopped yet may fork.
void stop_descendants();
void continue_descendants();

// Reaps children that ended, but for those in `kept`, which their owner reaps: a subreaper is given
// orphans that nobody else waits for.
void reap_orphans(const std::vector<pid_t>& kept);

}  // namespace hvd
