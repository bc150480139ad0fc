// What an agent makes on its host beside processes: a folder for sockets, and where the host allows
// it a cgroup. Both are locked by whoever of keeper and agent lives, so that the next agent of the
// same user can tell what is left of dead jobs, and sweeps it.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace hvd {

// A folder of mode 0700 with a random name, under XDG_RUNTIME_DIR, /dev/shm or /tmp.
struct SocketFolder {
  std::string path;
  Fd lock;  // held open by keeper and agent
};
Result<SocketFolder> make_socket_folder();
void remove_socket_folder(const std::string& path);
// Removes folders that nobody locks, of this user, that hold nothing but sockets: of all places
// where they may be, but /tmp, which can be vast, only if `own` is there.
void sweep_socket_folders(const std::string& own);

// A cgroup (version 2) below our own, for the agent and all it starts. Not there where the user may
// not make one or nothing may be moved: then descendants are found by walking alone.
class JobCgroup {
 public:
  JobCgroup() = default;
  static JobCgroup make(const std::string& name);

  bool valid() const { return folder_.valid(); }
  // Like fork(); the child begins in the group if there is one that can be entered.
  pid_t fork_into();
  // KILL to everything in it.
  void kill_all() const;
  // Once nothing is in it.
  void remove();
  // The same for a process that is in it alone.
  void leave_and_remove();
  // Kills and removes what is left of dead jobs beside it.
  void sweep() const;

 private:
  std::string parent_, name_;
  Fd folder_;  // locked
};

}  // namespace hvd
