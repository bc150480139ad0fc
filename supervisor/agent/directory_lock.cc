#include "supervisor/agent/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/fd.h"
#include "base/time.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr const char* kLockFile = ".hvdlaunch.lock";
constexpr size_t kLongestLock = 4096;
// Of a lease, so that a late one or two cost nothing.
constexpr int kTouchesInLease = 5;
constexpr Duration kShortestLease = 1s, kLongestLease = 10min;

std::string one_line(std::string text) {
  std::erase_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  return text;
}

template <class T>
void read_number(std::string_view text, T& number) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) number = value;
}

void read_line(std::string_view line, LockRecord& record) {
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) return;
  const std::string_view name = line.substr(0, equals), value = line.substr(equals + 1);
  if (name == "job") record.job = value;
  if (name == "attempt") read_number(value, record.attempt);
  if (name == "host") record.host = value;
  if (name == "launcher") record.launcher = value;
  if (name == "lease_ns") read_number(value, record.lease_ns);
  if (name == "boot_id") record.boot_id = value;
  if (name == "since") record.since = value;
}

uint64_t touched(const struct stat& st) {
  return static_cast<uint64_t>(st.st_mtim.tv_sec) * 1'000'000'000 +
         static_cast<uint64_t>(st.st_mtim.tv_nsec);
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// What the path leads to is the file behind `fd`.
bool is_at(int fd, const std::string& path) {
  struct stat ours, there;
  return fstat(fd, &ours) == 0 && lstat(path.c_str(), &there) == 0 && same_file(ours, there);
}

}  // namespace

std::string lock_text(const LockRecord& record) {
  return "job=" + one_line(record.job) + "\nattempt=" + std::to_string(record.attempt) +
         "\nhost=" + one_line(record.host) + "\nlauncher=" + one_line(record.launcher) +
         "\nlease_ns=" + std::to_string(record.lease_ns) + "\nboot_id=" + one_line(record.boot_id) +
         "\nsince=" + one_line(record.since) + "\n";
}

LockRecord parse_lock(std::string_view text) {
  LockRecord record;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    read_line(text.substr(0, end), record);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  const auto lease = static_cast<uint64_t>(kLongestLease.count());
  record.lease_ns =
      std::clamp(record.lease_ns, static_cast<uint64_t>(kShortestLease.count()), lease);
  return record;
}

struct DirectoryLock::State {
  std::mutex mutex;
  std::condition_variable changed;
  Fd file;  // valid while we hold the lock; the kernel's lock is on it
  std::string path;
  LockRecord record;
  bool over = false;

  static void touch(const std::shared_ptr<State>& state);
};

// A thread of its own: the one for tasks may be busy with verifying for minutes.
void DirectoryLock::State::touch(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (!state->over) {
    state->changed.wait_for(lock, bounded(state->record.lease_ns) / kTouchesInLease);
    const Fd file(state->file ? dup(state->file.get()) : -1);
    if (state->over || !file) continue;
    lock.unlock();
    // Now by the clock of whoever keeps the folder.
    static_cast<void>(!futimens(file.get(), nullptr));
    lock.lock();
  }
}

DirectoryLock::DirectoryLock(std::string boot_id)
    : state_(std::make_shared<State>()), boot_id_(std::move(boot_id)) {}

DirectoryLock::~DirectoryLock() {
  release();
}

void DirectoryLock::release() {
  const std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock) return;  // it hangs
  state_->over = true;
  state_->changed.notify_all();
  if (state_->file && is_at(state_->file.get(), state_->path)) unlink(state_->path.c_str());
  state_->file.reset();
}

namespace {

Status write_record(int fd, const LockRecord& record) {
  const std::string text = lock_text(record);
  const bool written = ftruncate(fd, 0) == 0 &&
                       pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (!written) return errno_error("cannot write the lock file", errno);
  return Ok{};
}

// Who looks at a lock has the kernel's for a moment.
void lock_file(int fd) {
  constexpr int kTries = 50;
  for (int tried = 0; tried < kTries; ++tried) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    std::this_thread::sleep_for(1ms);
  }
}

// A new lock, not valid if there is one already.
Result<Fd> make_lock(const std::string& path, const LockRecord& record) {
  Fd made(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!made && errno == EEXIST) return Fd();
  if (!made) return errno_error("cannot make the lock file " + path, errno);
  lock_file(made.get());
  const Status written = write_record(made.get(), record);
  if (written) return made;
  unlink(path.c_str());
  return Error{path + ": " + written.error().text};
}

// Another's lock, as it was found.
struct Found {
  Fd file;
  uint64_t touched_ns = 0;
  LockRecord holder;
  bool free = false;   // the kernel's lock on it is ours
  bool taken = false;  // it is another process's
};

std::optional<Found> look_at(const std::string& path) {
  Found found;
  struct stat st;
  found.file.reset(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!found.file || fstat(found.file.get(), &st) != 0) return std::nullopt;
  found.touched_ns = touched(st);
  char text[kLongestLock];
  const ssize_t n = pread(found.file.get(), text, sizeof text, 0);
  found.holder = parse_lock({text, n > 0 ? static_cast<size_t>(n) : 0});
  found.free = flock(found.file.get(), LOCK_EX | LOCK_NB) == 0;
  found.taken = !found.free && errno == EWOULDBLOCK;
  return found;
}

// Takes a lock away. What was moved by mistake, since somebody else was faster, is put back.
void clear(const std::string& path, const Found& found) {
  const std::string aside = path + "." + std::to_string(getpid());
  if (rename(path.c_str(), aside.c_str()) != 0) return;
  if (!is_at(found.file.get(), aside)) static_cast<void>(!link(aside.c_str(), path.c_str()));
  unlink(aside.c_str());
}

}  // namespace

bool DirectoryLock::holds(const std::string& path) const {
  return state_->file && state_->path == path && is_at(state_->file.get(), path);
}

void DirectoryLock::keep(Fd file, const std::string& path, const LockRecord& record) {
  const bool first = state_->path.empty();
  state_->file = std::move(file);
  state_->path = path;
  state_->record = record;
  if (first) std::thread([state = state_] { State::touch(state); }).detach();
}

LockTaken DirectoryLock::perform(const TakeLock& task) {
  LockTaken answer;
  answer.request = task.request;
  const std::lock_guard lock(state_->mutex);
  LockRecord record = task.record;
  record.boot_id = boot_id_;
  record.since = state_->record.since.empty() ? wall_clock_stamp() : state_->record.since;
  const std::string path = task.dir + "/" + kLockFile;
  if (holds(path)) {
    const Status written = write_record(state_->file.get(), record);
    answer.taken = written.ok();
    if (!written) answer.error = path + ": " + written.error().text;
    return answer;
  }
  // Nobody else makes it where every host has its own.
  if (const Status folder = make_lasting_folders(task.dir, 0777); !folder) {
    answer.error = folder.error().text;
    return answer;
  }
  // Who loses a race looks again at whoever won it.
  constexpr int kTries = 5;
  for (int tried = 0; tried < kTries; ++tried) {
    Result<Fd> made = make_lock(path, record);
    if (!made) answer.error = made.error().text;
    if (made && *made) keep(std::move(*made), path, record);
    answer.taken = made && state_->file;
    if (answer.taken || !made) return answer;
    const std::optional<Found> found = look_at(path);
    if (!found && errno == ENOENT) continue;
    if (!found) {
      answer.error = errno_error("cannot read the lock file " + path, errno).text;
      return answer;
    }
    answer.holder = found->holder;
    answer.touched_ns = found->touched_ns;
    answer.alive = found->taken;
    const bool ours = found->holder.job == task.record.job;
    const bool gone = found->free && !boot_id_.empty() && found->holder.boot_id == boot_id_;
    const bool stale = !found->taken && task.stale_ns != 0 && task.stale_ns == found->touched_ns;
    if (!ours && !gone && !stale) return answer;
    clear(path, *found);
  }
  answer.alive = true;
  return answer;
}

}  // namespace hvd
