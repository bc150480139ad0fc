// What the launcher remembers on its own machine, under XDG_STATE_HOME/hvdlaunch (or
// ~/.local/state/hvdlaunch): the history of recent jobs, and for each checkpoint directory how to
// resume, so that `resume` works where that directory cannot be seen.
//
//   jobs/JOB/events.jsonl, report.json     newest 50 jobs; for the rest see launcher/journal
//   host-failures.jsonl                    see launcher/host_memory; of the last day and older
//   resume/DIGEST/job.toml, progress.json  DIGEST is of the checkpoint directory's path
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "launcher/host_memory.h"

namespace hvd {

// What a resumed job wants to know of earlier runs beside job.toml. Hints: they may be a beat old.
struct RunProgress {
  uint64_t reached_step = 0;
  std::string foreign_path;  // the program's own newest checkpoint
  uint64_t foreign_step = 0;
  friend bool operator==(const RunProgress&, const RunProgress&) = default;
};

class StateFolder {
 public:
  // Where the environment says; nothing is made yet. Without a home everything is empty.
  StateFolder();

  std::string job_file(const std::string& job, const std::string& name) const;
  std::string jobs_folder() const { return root_.empty() ? "" : root_ + "/jobs"; }
  std::string resume_file(const std::string& checkpoint_dir, const std::string& name) const;

  std::string host_file() const { return root_.empty() ? "" : root_ + "/host-failures.jsonl"; }
  // Of the last day. A file grown long is cut to them.
  Result<std::vector<HostFailure>> host_failures(int64_t now) const;
  Status remember_failure(const HostFailure& failure) const;

  // The folder stays as long as this object lives.
  Status make_job_folder(const std::string& job);
  // All but the newest, and those of jobs that run.
  void remove_old_jobs() const;
  // Keeps job.toml for `resume`; mode 0600.
  Status remember(const std::string& checkpoint_dir, const std::string& job_text) const;

 private:
  std::string root_;
  Fd job_lock_;
};

std::string progress_text(const RunProgress& progress);
// What the file says; nothing on a missing or broken one.
RunProgress read_progress(const std::string& path);

// A new job id: the date and time and six random hex digits, so that names sort by age.
std::string new_job_id();
// 32 random hex digits.
std::string new_secret();
uint64_t random_number();

// "process 123 on login1": this launcher, for people.
std::string own_name();

}  // namespace hvd
