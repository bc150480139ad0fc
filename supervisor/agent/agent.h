// The per-host process, `hvdlaunch agent`. It is started by the launcher, directly or over SSH,
// with wire 1 (base/message.h) on its standard input and output.
//
// The process that starts is the keeper (keeper.h). It forks the agent proper (agent_loop.h), which
// starts, watches and stops this host's workers. Whatever ends first, the other kills what is left.
#pragma once

#include <string>
#include <vector>

namespace hvd {

// `arguments`: --job JOB --host INDEX [--attach]. The index is the host's place in the job's host
// list. Returns the exit code: 0 after Goodbye, 1 when the launcher was lost or could not be
// understood, 2 for arguments that are wrong.
int agent_main(const std::vector<std::string>& arguments);

}  // namespace hvd
