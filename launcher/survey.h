// Asks hosts what they are before there is a plan: reaches their agents, takes what they tell at
// the greeting or read for it, and leaves again. For slots = "auto", and to resume a job whose
// checkpoint folder cannot be seen from here.
#pragma once

#include <cstdint>
#include <string>
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

struct FarJobFile {
  std::string hostname;  // of the machine that was asked
  std::string text;      // empty without an error: there is no such file
  std::string error;     // why the file that is there is not to be used
};
// Of the checkpoint folder `dir` on the job's only host. The error says why it cannot be asked.
Result<FarJobFile> read_far_job_file(const Job& job, const std::string& dir,
                                     bool accept_new_host_keys);

}  // namespace hvd
