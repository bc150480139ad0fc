#include "launcher/history.h"

#include <ctime>
#include <mutex>
#include <utility>

#include "launcher/host_memory.h"
#include "launcher/journal.h"
#include "launcher/writer.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
constexpr Duration kPatience = 5s;
}  // namespace

// What the thread uses; of the folder the loop asks for names only.
struct History::Shelf {
  StateFolder state;
  std::mutex mutex;
  std::vector<std::string> warnings;  // under it
  Writer writer;                      // its thread ends before the others do
};

History::History(const Job& job) : job_(job), shelf_(std::make_unique<Shelf>()) {}

History::~History() {
  // A thread that hangs in a system call cannot be joined, and still has this in its hands.
  if (!shelf_->writer.idle()) static_cast<void>(shelf_.release());
}

void History::remember() {
  if (job_.job_file.empty() || job_.checkpoint_dir.empty()) return;
  shelf_->writer.perform(shelf_->state.resume_file(job_.checkpoint_dir, "job.toml"),
                         [&state = shelf_->state, dir = job_.checkpoint_dir, text = job_.job_file] {
                           return state.remember(dir, text);
                         });
}

void History::recall_hosts() {
  std::vector<std::string> hosts;
  for (const Host& host : job_.hosts) hosts.push_back(host.name);
  const std::string path = shelf_->state.host_file();
  shelf_->writer.perform(path, [shelf = shelf_.get(), path, hosts]() -> Status {
    const Result<std::vector<HostFailure>> failures =
        shelf->state.host_failures(std::time(nullptr));
    if (!failures) return failures.error();
    const std::lock_guard lock(shelf->mutex);
    shelf->warnings = describe_failures(*failures, hosts);
    return Ok{};
  });
}

std::vector<std::string> History::take_warnings() {
  const std::lock_guard lock(shelf_->mutex);
  return std::exchange(shelf_->warnings, {});
}

void History::note_host_failure(const std::string& host, const std::string& reason) {
  const HostFailure failure{std::time(nullptr), host, reason};
  shelf_->writer.perform(shelf_->state.host_file(), [&state = shelf_->state, failure] {
    return state.remember_failure(failure);
  });
}

void History::open() {
  open_ = true;
  shelf_->writer.perform(shelf_->state.job_file(job_.id, ""),
                         [&state = shelf_->state, id = job_.id] {
                           const Status made = state.make_job_folder(id);
                           state.remove_old_jobs();
                           return made;
                         });
  append("events.jsonl", std::exchange(waiting_, {}));
}

void History::add(const std::string& line) {
  if (open_) {
    append("events.jsonl", line);
  } else {
    waiting_ += line;
  }
}

void History::add_report(std::string json) {
  if (open_) append("report.json", std::move(json));
}

std::string History::add_stacks(uint32_t attempt, std::string text) {
  if (!open_) open();
  const std::string name = "stacks-" + std::to_string(attempt);
  append(name, std::move(text));
  return given_up_ ? "" : shelf_->state.job_file(job_.id, name);
}

void History::append(const std::string& name, std::string text) {
  const std::string path = shelf_->state.job_file(job_.id, name);
  if (!given_up_ && !path.empty() && !text.empty()) shelf_->writer.append(path, std::move(text));
}

void History::note_progress(const RunProgress& progress) {
  if (progress == progress_) return;
  progress_ = progress;
  const std::string path = shelf_->state.resume_file(job_.checkpoint_dir, "progress.json");
  if (!given_up_ && !path.empty()) shelf_->writer.replace(path, progress_text(progress));
}

void History::note_journal(std::string text) {
  if (!given_up_) {
    shelf_->writer.replace(shelf_->state.job_file(job_.id, "journal.json"), std::move(text));
  }
}

void History::remove_journal() {
  if (given_up_) return;
  shelf_->writer.perform(
      shelf_->state.job_file(job_.id, ""),
      [&state = shelf_->state, id = job_.id] { return remove_watch(state, id); });
}

int History::fd() const {
  return shelf_->writer.fd();
}

std::string History::take_trouble(Time now) {
  static_cast<void>(shelf_->writer.take_written());
  const std::string error = shelf_->writer.take_error();
  if (!error.empty()) return "no history is kept: " + error;
  const std::string path = shelf_->writer.take_stuck(now, kPatience);
  if (path.empty()) return "";
  given_up_ = true;
  return "no history is kept: nothing could be written to " + path + " for " +
         format_duration(kPatience);
}

std::optional<Time> History::deadline() const {
  return shelf_->writer.stuck_at(kPatience);
}

bool History::over() const {
  return given_up_ || shelf_->writer.idle();
}

}  // namespace hvd
