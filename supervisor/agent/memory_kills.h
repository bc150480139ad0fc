// Whether a rank that was ended by KILL was killed for memory. Asked of the kernel's log, where it
// can be read, and of the counters of the rank's memory cgroup (memory.events of version 2,
// memory.oom_control of version 1), before and after.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/message.h"

namespace hvd {

class MemoryKills {
 public:
  // From now on the log is listened to, and this process's own group counts for those not noted.
  MemoryKills();

  // Looks where a running process's memory is counted; to be repeated while it may still move.
  void note(pid_t pid);
  // Of a process that was ended by KILL and is not reaped yet.
  Killer killer_of(pid_t pid);

 private:
  bool in_kernel_log(pid_t pid);

  Fd log_;
  std::string logged_;                                      // records of kills
  std::map<pid_t, std::string> files_;                      // counter of each process noted
  std::map<std::string, std::optional<uint64_t>> counted_;  // by file: kills accounted for
};

}  // namespace hvd
