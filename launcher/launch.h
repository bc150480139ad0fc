// Runs one job: the loop between the policy (supervisor/policy), the hosts (agent_link) and the
// user's terminal. It decides nothing: events go to the policy, its actions are performed.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "base/fd.h"
#include "launcher/output.h"
#include "supervisor/job.h"
#include "supervisor/job_memory.h"
#include "supervisor/placement.h"

namespace hvd {

struct LaunchSettings {
  OutputStyle style;
  std::set<uint32_t> only_ranks;  // empty: all; others' output is dropped, logs are whole
  bool fold = false;              // identical lines of several ranks as one
  std::string log_dir;            // empty: no log files
  uint32_t logged_before = 0;     // attempts that log_dir held already; see claim_log_folder
  int verbosity = 0;              // -1: errors only, 0, 1: details
  bool accept_new_host_keys = false;
};

// A job whose launcher is gone, and whose agents may go on.
struct Predecessor {
  JobMemory memory;
  Duration elapsed{};        // since the job was started
  bool may_be_over = false;  // then nothing is said of it
};

// The job from its first connection to the last process's end. Returns the exit code of the
// contract. The calling process must have no other thread. `on_started` is called once all ranks of
// an attempt run.
int launch(const Job& job, const Placement& placement, const LaunchSettings& settings,
           std::function<void()> on_started = nullptr);

// The same for a job that an earlier launcher began. What its ranks are given is as its agents
// have it. `lock` is the job's (launcher/journal). None if nothing of it is left and that may be.
std::optional<int> take_over(const Job& job, const Placement& placement,
                             const LaunchSettings& settings, const Predecessor& predecessor,
                             Fd lock);

}  // namespace hvd
