#include "supervisor/agent/leftovers.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "supervisor/agent/folder.h"

namespace hvd {

namespace {

using namespace std::chrono_literals;

constexpr std::string_view kFolderPrefix = "hvdlaunch-";
constexpr size_t kRandomPart = 6;
constexpr std::string_view kGroupPrefix = "hvdlaunch-";
// A killed group is empty soon; one that is not is left to the next sweep.
constexpr int kEmptyTries = 100;
constexpr long kLongestPauseNs = 1'000'000;

// What nobody alive holds: the lock, of this user's own folder.
Fd lock_if_dead(int parent, const std::string& name) {
  Fd folder(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  struct stat st;
  if (!folder || fstat(folder.get(), &st) != 0 || st.st_uid != geteuid()) return Fd();
  return flock(folder.get(), LOCK_EX | LOCK_NB) == 0 ? std::move(folder) : Fd();
}

// A sweeper may have taken the folder for a dead one before it was locked: then it is gone.
Fd lock_new(const std::string& path) {
  Fd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || flock(folder.get(), LOCK_EX) != 0) return folder;
  return access(path.c_str(), F_OK) == 0 ? std::move(folder) : Fd();
}

bool make_folder_in(const std::string& parent, SocketFolder& folder) {
  // Leaves room for a socket's own name in the 108 bytes of sun_path.
  constexpr size_t kLongest = 64;
  if (parent.size() > kLongest || parent.front() != '/') return false;
  for (int tries = 0; tries < 3; ++tries) {
    folder.path = parent + "/" + std::string(kFolderPrefix) + std::string(kRandomPart, 'X');
    if (mkdtemp(folder.path.data()) == nullptr) return false;
    folder.lock = lock_new(folder.path);
    if (folder.lock) return true;
  }
  return false;
}

std::vector<std::string> parents_of_folders() {
  std::vector<std::string> parents;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime != 0) parents.emplace_back(runtime);
  // Sockets are made and removed faster in memory than on a disk.
  parents.emplace_back("/dev/shm");
  parents.emplace_back("/tmp");
  return parents;
}

// Nothing but sockets is in it: it is one of ours, whatever its name.
bool remove_sockets(int folder) {
  const Result<std::vector<std::string>> names = list_folder(folder);
  if (!names) return false;
  for (const std::string& name : *names) {
    struct stat st;
    if (fstatat(folder, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(st.st_mode)) {
      return false;
    }
  }
  for (const std::string& name : *names) unlinkat(folder, name.c_str(), 0);
  return true;
}

bool is_cgroup2(const char* path) {
  struct statfs fs;
  return statfs(path, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC;
}

// The folder of this process's own group, or empty.
std::string own_cgroup() {
  const char* root = nullptr;
  for (const char* place : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    if (is_cgroup2(place)) root = place;
  }
  const Result<std::string> text =
      root == nullptr ? Result<std::string>(Error{}) : read_file("/proc/self/cgroup", 64 << 10);
  if (!text) return "";
  const size_t line = text->find("0::/");
  if (line == std::string::npos) return "";
  const std::string path = text->substr(line + 3, text->find('\n', line) - line - 3);
  // Out of the sight of a container.
  if (path.starts_with("/..")) return "";
  return path == "/" ? root : root + path;
}

void write_at(int folder, const char* name, std::string_view text) {
  const Fd file(openat(folder, name, O_WRONLY | O_CLOEXEC));
  if (!file) return;
  [[maybe_unused]] const ssize_t n = write(file.get(), text.data(), text.size());
}

void remove_group(int parent, const std::string& name) {
  timespec pause{0, 20'000};
  for (int tries = 0; tries < kEmptyTries; ++tries) {
    if (unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0 || errno != EBUSY) return;
    nanosleep(&pause, nullptr);
    pause.tv_nsec = std::min(2 * pause.tv_nsec, kLongestPauseNs);
  }
}

}  // namespace

Result<SocketFolder> make_socket_folder() {
  SocketFolder folder;
  for (const std::string& parent : parents_of_folders()) {
    if (make_folder_in(parent, folder)) return folder;
  }
  return errno_error("cannot make a folder for sockets in /tmp", errno);
}

void remove_socket_folder(const std::string& path) {
  static_cast<void>(remove_tree(AT_FDCWD, path));
}

void sweep_socket_folders(const std::string& own) {
  for (const std::string& parent : parents_of_folders()) {
    if (parent == "/tmp" && !own.starts_with("/tmp/")) continue;
    const Fd in(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const Result<std::vector<std::string>> names =
        in ? list_folder(in.get()) : Result<std::vector<std::string>>(Error{});
    if (!names) continue;
    for (const std::string& name : *names) {
      if (!name.starts_with(kFolderPrefix) || name.size() != kFolderPrefix.size() + kRandomPart) {
        continue;
      }
      const Fd dead = lock_if_dead(in.get(), name);
      if (dead && remove_sockets(dead.get())) unlinkat(in.get(), name.c_str(), AT_REMOVEDIR);
    }
  }
}

JobCgroup JobCgroup::make(const std::string& name) {
  JobCgroup group;
  group.parent_ = own_cgroup();
  if (group.parent_.empty()) return group;
  group.name_ = std::string(kGroupPrefix) + name;
  const std::string path = group.parent_ + "/" + group.name_;
  const bool there = mkdir(path.c_str(), 0700) != 0 && errno == EEXIST;
  group.folder_ = there ? lock_if_dead(AT_FDCWD, path) : lock_new(path);
  if (there) group.kill_all();
  return group;
}

pid_t JobCgroup::fork_into() {
  if (valid()) {
    clone_args how{};
    how.flags = CLONE_INTO_CGROUP;
    how.exit_signal = SIGCHLD;
    how.cgroup = static_cast<uint64_t>(folder_.get());
    const auto pid = static_cast<pid_t>(syscall(SYS_clone3, &how, sizeof how));
    if (pid >= 0) return pid;
    remove();
  }
  return fork();
}

void JobCgroup::kill_all() const {
  if (valid()) write_at(folder_.get(), "cgroup.kill", "1");
}

void JobCgroup::remove() {
  if (!valid()) return;
  remove_group(AT_FDCWD, parent_ + "/" + name_);
  folder_.reset();
}

void JobCgroup::leave_and_remove() {
  if (!valid()) return;
  write_at(AT_FDCWD, (parent_ + "/cgroup.procs").c_str(), "0");
  remove();
}

void JobCgroup::sweep() const {
  const Fd parent(parent_.empty() ? -1 : open(parent_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Result<std::vector<std::string>> names =
      parent ? list_folder(parent.get()) : Result<std::vector<std::string>>(Error{});
  if (!names) return;
  for (const std::string& name : *names) {
    if (!name.starts_with(kGroupPrefix)) continue;
    const Fd dead = lock_if_dead(parent.get(), name);
    if (!dead) continue;
    write_at(dead.get(), "cgroup.kill", "1");
    remove_group(parent.get(), name);
  }
}

}  // namespace hvd
