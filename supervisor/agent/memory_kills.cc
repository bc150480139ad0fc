#include "supervisor/agent/memory_kills.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>

namespace hvd {

namespace {

constexpr size_t kSmallFile = 64 << 10;
const std::string kLogMark = "Killed process ";

std::string proc_text(pid_t pid, const char* name) {
  const Result<std::string> text =
      read_file("/proc/" + std::to_string(pid) + "/" + name, kSmallFile);
  return text ? *text : "";
}

// The line of /proc/PID/cgroup for version 1's memory controller, or else version 2's: its path.
std::optional<std::string> cgroup_path(std::string_view text, std::string_view mark) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t found = line.find(mark);
    if (found != std::string_view::npos) return std::string(line.substr(found + mark.size()));
  }
  return std::nullopt;
}

// The counter's file, or empty: of the nearest group above that counts. Containers see their own
// group as the root of the mount, whatever its path.
std::string counter_file(pid_t pid) {
  const std::string text = proc_text(pid, "cgroup");
  struct Place {
    std::string_view mark;
    const char* root;
    const char* file;
  };
  constexpr Place kPlaces[] = {{":memory:", "/sys/fs/cgroup/memory", "/memory.oom_control"},
                               {"0::", "/sys/fs/cgroup", "/memory.events"},
                               {"0::", "/sys/fs/cgroup/unified", "/memory.events"}};
  for (const Place& place : kPlaces) {
    std::optional<std::string> path = cgroup_path(text, place.mark);
    while (path) {
      const std::string file = place.root + (*path == "/" ? "" : *path) + place.file;
      if (access(file.c_str(), R_OK) == 0) return file;
      if (path->empty()) break;
      path->resize(path->rfind('/'));
    }
  }
  return "";
}

std::optional<uint64_t> oom_kills(const std::string& file) {
  constexpr std::string_view kMark = "oom_kill ";
  const Result<std::string> text = read_file(file, kSmallFile);
  const size_t found = text ? text->find(kMark) : std::string::npos;
  if (found == std::string::npos) return std::nullopt;
  uint64_t count = 0;
  const char* begin = text->c_str() + found + kMark.size();
  std::from_chars(begin, text->c_str() + text->size(), count);
  return count;
}

}  // namespace

MemoryKills::MemoryKills() : log_(open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (log_) lseek(log_.get(), 0, SEEK_END);
  note(getpid());
}

void MemoryKills::note(pid_t pid) {
  std::string file = counter_file(pid);
  if (file.empty()) return;
  if (!counted_.contains(file)) counted_[file] = oom_kills(file);
  files_[pid] = std::move(file);
}

// "Killed process 968 (python3) ...". In a container the kernel counts pids otherwise than it shows
// them: the name must be the same too.
bool MemoryKills::in_kernel_log(pid_t pid) {
  char record[8192];
  while (log_) {
    const ssize_t n = read(log_.get(), record, sizeof record);
    if (n < 0 && errno == EPIPE) continue;  // old records were overwritten
    if (n <= 0) break;
    const std::string_view text(record, static_cast<size_t>(n));
    const size_t found = text.find(kLogMark);
    if (found != std::string_view::npos) logged_ += std::string(text.substr(found)) + "\n";
  }
  std::string name = proc_text(pid, "comm");
  if (!name.empty()) name.pop_back();
  return logged_.find(kLogMark + std::to_string(pid) + " (" + name + ")") != std::string::npos;
}

Killer MemoryKills::killer_of(pid_t pid) {
  const bool logged = in_kernel_log(pid);
  const auto own = files_.find(pid);
  const auto file = own != files_.end() ? own : files_.find(getpid());
  if (file != files_.end() && counted_[file->second]) {
    // One kill accounts for one rank.
    uint64_t& before = *counted_[file->second];
    const std::optional<uint64_t> after = oom_kills(file->second);
    if (after && *after > before) {
      ++before;
      return Killer::memory;
    }
    if (after && !logged) return Killer::other;
  }
  return logged ? Killer::memory : Killer::unknown;
}

}  // namespace hvd
