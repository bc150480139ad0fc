// Where the processes of a rank wait, as text for people. Used by the agent's second task thread:
// debuggers take their time.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/message.h"
#include "base/time.h"

namespace hvd {

struct RankProcess {
  uint32_t rank = 0;
  pid_t pid = -1;  // its main process
};

// Of each rank its processes and their threads: name, state, CPU time, what it waits for in the
// kernel; and call stacks by py-spy (of Python) or gdb, where one is in PATH and `limit`, which all
// ranks of a host share, leaves it the time. A debugger stops a process for a moment; it leaves it
// as it was.
StacksTaken take_stacks(const TakeStacks& request, const std::vector<RankProcess>& ranks);

}  // namespace hvd
