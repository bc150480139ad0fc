#include "supervisor/agent/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string_view>

#include "base/stale.h"

namespace hvd {

namespace {

// Deeper trees are none that we made.
constexpr int kDeepest = 16;

Status remove_below(int parent, const std::string& name, int depth) {
  if (unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return Ok{};
  const int number = errno;
  struct stat st;
  if (fstatat(parent, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(st.st_mode)) {
    return errno_error("cannot remove " + name, number);
  }
  if (depth == kDeepest) return Error{"cannot remove " + name + ": it is nested too deeply"};
  const Fd folder = open_folder_at(parent, name);
  if (!folder) return errno_error("cannot remove " + name, errno);
  const Result<std::vector<std::string>> entries = list_folder(folder.get());
  if (!entries) return entries.error();
  for (const std::string& entry : *entries) {
    const Status removed = remove_below(folder.get(), entry, depth + 1);
    if (!removed) return Error{removed.error().text + " in " + name};
  }
  if (unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return Ok{};
  return errno_error("cannot remove " + name, errno);
}

}  // namespace

Fd open_folder_at(int parent, const std::string& name) {
  const int follow = parent == AT_FDCWD ? 0 : O_NOFOLLOW;
  return open_anew(
      [&] { return openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | follow); });
}

Result<std::vector<std::string>> list_folder(int folder) {
  constexpr size_t kMost = 1'000'000;
  Fd own(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(own ? fdopendir(own.get()) : nullptr, closedir);
  if (dir == nullptr) return errno_error("cannot list a folder", errno);
  own.release();
  std::vector<std::string> names;
  while (names.size() < kMost) {
    errno = 0;
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr && errno != 0) return errno_error("cannot list a folder", errno);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

bool is_regular_at(int folder, const std::string& name) {
  struct stat st;
  return fstatat(folder, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

Status remove_tree(int parent, const std::string& name) {
  return remove_below(parent, name, 0);
}

}  // namespace hvd
