// Asks hosts what they are before there is a plan: reaches their agents, takes what they tell at
// the greeting, and leaves again. For slots = "auto".
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/message.h"
#include "supervisor/job.h"

namespace hvd {

// What the agents of these hosts (indices into job.hosts) told, in the same order. All are asked at
// once and by the job's start deadline; the error has a line for each host that did not answer.
// Blocks; signals end the process as they always do, and the agents end with their channels.
Result<std::vector<AgentHello>> survey(const Job& job, const std::vector<uint32_t>& hosts,
                                       bool accept_new_host_keys);

}  // namespace hvd
