// The journal of a job that survives its launcher, in jobs/JOB (launcher/state_folder): all that
// another launcher needs to take the job over, beside what agents tell. It is there while the job
// is not over. Who watches the job holds the lock.
//
//   journal.json   the job, how its output is shown, and the policy's memory, a moment behind
//   shown          see shown_table.h
//   watcher        locked by the launcher; its text says who that is
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "launcher/launch.h"
#include "launcher/shown_table.h"
#include "launcher/state_folder.h"
#include "supervisor/job.h"
#include "supervisor/job_memory.h"

namespace hvd {

struct Journal {
  std::string job_file;  // text of job.toml
  LaunchSettings settings;
  std::string allocation;  // see Job
  bool resumable = false;  // job_file may be written to the checkpoint folder
  int64_t began = 0;       // seconds since 1970
  JobMemory memory;
};

std::string journal_text(const Journal& journal);
// Errors begin with the path.
Result<Journal> parse_journal(std::string_view text, const std::string& path);

// The lock of a job; the error is a sentence that says who watches it. One that a stopped process
// of this machine holds is taken from it: whether it still has the job is for the agents to say.
Result<Fd> lock_job(const StateFolder& state, const std::string& job);

// What the launcher of a job that survives it has in hand.
struct Watch {
  Fd lock;
  ShownTable shown;
  Journal journal;
};
// Makes the job's folder and all in it.
Result<Watch> begin_watch(const StateFolder& state, const Job& job, const LaunchSettings& settings);
// Goes on in the folder that is there.
Result<Watch> go_on_watching(const StateFolder& state, const std::string& job, uint32_t ranks,
                             Fd lock);
// All of it goes: the job is over.
Status remove_watch(const StateFolder& state, const std::string& job);

// Jobs with a journal, oldest first.
std::vector<std::string> surviving_jobs(const StateFolder& state);
Result<Journal> read_journal(const StateFolder& state, const std::string& job);

}  // namespace hvd
