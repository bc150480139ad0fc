// What the launcher keeps of a job on its own machine (launcher/state_folder): the history, and
// what `resume` wants to know. A thread of its own does all of it, so that a home that hangs delays
// no start and costs no host its lease: what could not be written for five seconds is given up.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "launcher/state_folder.h"
#include "supervisor/job.h"

namespace hvd {

class History {
 public:
  // The job outlives this.
  explicit History(const Job& job);
  // Does not wait for a write that hangs: the process is about to end.
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // How to resume the job, where it has a checkpoint directory.
  void remember();
  // What earlier runs held against the job's hosts is looked up, and told by take_warnings().
  void recall_hosts();
  std::vector<std::string> take_warnings();
  void note_host_failure(const std::string& host, const std::string& reason);
  // Lines of the event log; until open() they are kept here.
  void add(const std::string& line);
  void open();
  bool is_open() const { return open_; }
  void note_progress(const RunProgress& progress);
  // The journal of a job that survives us, and its end.
  void note_journal(std::string text);
  void remove_journal();
  // Another launcher keeps all this from now on.
  void give_up() { given_up_ = true; }
  // Where the ranks of an attempt wait. The file's path; empty where no history is kept.
  std::string add_stacks(uint32_t attempt, std::string text);
  // As launcher/event_log makes it. Left out where no history is open.
  void add_report(std::string json);

  // Readable when over() or take_trouble() has news.
  int fd() const;
  // Why something is not kept, a sentence that is told once; by deadline() at the latest.
  std::string take_trouble(Time now);
  std::optional<Time> deadline() const;
  // All that was to be kept is written or given up.
  bool over() const;

 private:
  struct Shelf;

  void append(const std::string& name, std::string text);

  const Job& job_;
  std::unique_ptr<Shelf> shelf_;
  std::string waiting_;  // lines from before open()
  RunProgress progress_;
  bool open_ = false;
  bool given_up_ = false;
};

}  // namespace hvd
