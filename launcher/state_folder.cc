#include "launcher/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/checkpoint_format.h"
#include "base/fd.h"

namespace hvd {

namespace {

constexpr size_t kJobsKept = 50;
constexpr size_t kMaxProgress = 64 << 10;
constexpr size_t kLongHostFile = 64 << 10;
constexpr size_t kMaxHostFile = 16 << 20;

std::string random_hex(size_t digits) {
  std::string bytes((digits + 1) / 2, '\0');
  HVD_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  std::string hex;
  for (const char byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(byte) >> 4];
    hex += kDigits[byte & 15];
  }
  hex.resize(digits);
  return hex;
}

// Its ranks may go on without a launcher (launcher/journal).
bool may_survive(const std::filesystem::path& job) {
  constexpr auto kLong = std::chrono::hours(24 * 30);
  std::error_code error;
  const auto written = std::filesystem::last_write_time(job / "journal.json", error);
  return !error && std::filesystem::file_time_type::clock::now() - written < kLong;
}

}  // namespace

StateFolder::StateFolder() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && state[0] == '/') {
    root_ = std::string(state) + "/hvdlaunch";
  } else if (home != nullptr && home[0] == '/') {
    root_ = std::string(home) + "/.local/state/hvdlaunch";
  }
}

std::string StateFolder::job_file(const std::string& job, const std::string& name) const {
  return root_.empty() ? "" : root_ + "/jobs/" + job + "/" + name;
}

std::string StateFolder::resume_file(const std::string& checkpoint_dir,
                                     const std::string& name) const {
  return root_.empty() ? "" : root_ + "/resume/" + digest_of(checkpoint_dir) + "/" + name;
}

Result<std::vector<HostFailure>> StateFolder::host_failures(int64_t now) const {
  const std::string path = host_file();
  if (path.empty() || access(path.c_str(), F_OK) != 0) return std::vector<HostFailure>();
  const Result<std::string> text = read_file(path, kMaxHostFile);
  if (!text) return text.error();
  std::vector<HostFailure> failures = recent_failures(*text, now);
  if (text->size() <= kLongHostFile) return failures;
  std::string kept;
  for (const HostFailure& one : failures) kept += host_failure_line(one);
  if (const Status status = replace_file(path, kept, 0600); !status) return status.error();
  return failures;
}

Status StateFolder::remember_failure(const HostFailure& failure) const {
  if (root_.empty()) return Ok{};
  if (const Status made = make_folders(root_, 0700); !made) return made;
  const Fd file(open(host_file().c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return errno_error("cannot write " + host_file(), errno);
  return write_all(file.get(), host_failure_line(failure));
}

Status StateFolder::make_job_folder(const std::string& job) {
  if (root_.empty()) return Ok{};
  const std::string folder = root_ + "/jobs/" + job;
  const Status made = make_folders(folder, 0700);
  job_lock_ = Fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (job_lock_) flock(job_lock_.get(), LOCK_SH);
  return made;
}

void StateFolder::remove_old_jobs() const {
  namespace fs = std::filesystem;
  if (root_.empty()) return;
  std::error_code ignored;
  std::vector<fs::path> jobs;
  for (const fs::directory_entry& entry : fs::directory_iterator(root_ + "/jobs", ignored)) {
    jobs.push_back(entry.path());
  }
  if (jobs.size() <= kJobsKept) return;
  std::sort(jobs.begin(), jobs.end());
  for (size_t i = 0; i < jobs.size() - kJobsKept; ++i) {
    const Fd folder(open(jobs[i].c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const bool runs = folder && flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!runs && !may_survive(jobs[i])) fs::remove_all(jobs[i], ignored);
  }
}

Status StateFolder::remember(const std::string& checkpoint_dir, const std::string& job_text) const {
  if (root_.empty()) return Ok{};
  const std::string path = resume_file(checkpoint_dir, "job.toml");
  Status made = make_folders(path.substr(0, path.rfind('/')), 0700);
  return made ? replace_file(path, job_text, 0600) : made;
}

std::string progress_text(const RunProgress& progress) {
  const nlohmann::json json = {{"reached_step", progress.reached_step},
                               {"foreign_path", progress.foreign_path},
                               {"foreign_step", progress.foreign_step}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

RunProgress read_progress(const std::string& path) {
  RunProgress progress;
  const Result<std::string> text = read_file(path, kMaxProgress);
  if (!text) return progress;
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object()) return progress;
  const auto step = json.find("reached_step");
  const auto path_found = json.find("foreign_path");
  const auto foreign_step = json.find("foreign_step");
  if (step != json.end() && step->is_number_unsigned()) progress.reached_step = *step;
  if (path_found != json.end() && path_found->is_string()) progress.foreign_path = *path_found;
  if (foreign_step != json.end() && foreign_step->is_number_unsigned()) {
    progress.foreign_step = *foreign_step;
  }
  return progress;
}

std::string new_job_id() {
  const time_t seconds = std::time(nullptr);
  tm parts;
  gmtime_r(&seconds, &parts);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S-", &parts);
  return stamp + random_hex(6);
}

uint64_t random_number() {
  uint64_t number = 0;
  HVD_CHECK(getrandom(&number, sizeof number, 0) == sizeof number);
  return number;
}

std::string own_name() {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  return "process " + std::to_string(getpid()) + " on " + host;
}

std::string new_secret() {
  return random_hex(32);
}

}  // namespace hvd
