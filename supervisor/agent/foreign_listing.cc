// Lists a folder for the rules of foreign_layouts.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "base/checkpoint_format.h"
#include "supervisor/agent/folder.h"
#include "supervisor/agent/foreign_layouts.h"

namespace hvd {

namespace {

constexpr int kDeepest = 3;
constexpr size_t kMostEntries = 200'000;
constexpr size_t kLongestText = 8u << 20;
constexpr ssize_t kZipEnd = 22;  // bytes of the record that an archive ends with

std::string first_bytes(int fd, size_t limit) {
  std::string text(limit, '\0');
  const ssize_t n = pread(fd, text.data(), limit, 0);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

// Files of torch.save are zip archives without a comment at their end.
bool is_cut_off(int fd, off_t size) {
  using namespace std::string_view_literals;
  if (first_bytes(fd, 4) != "PK\x03\x04"sv) return false;
  char end[kZipEnd];
  const bool read = size > kZipEnd && pread(fd, end, kZipEnd, size - kZipEnd) == kZipEnd;
  return !read || std::string_view(end, 4) != "PK\x05\x06"sv;
}

void look_into(int folder, const struct stat& st, FolderEntry& entry) {
  entry.size = static_cast<uint64_t>(st.st_size);
  const Fd fd(openat(folder, entry.name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return;
  entry.cut_off = is_cut_off(fd.get(), st.st_size);
  if (is_read(entry.name))
    entry.text = first_bytes(fd.get(), std::min<size_t>(entry.size, kLongestText));
}

std::vector<FolderEntry> list(int folder, int depth, size_t& left) {
  std::vector<FolderEntry> entries;
  const Result<std::vector<std::string>> names = list_folder(folder);
  if (!names) return entries;
  for (const std::string& name : *names) {
    const bool ours = parse_step_folder(name.substr(0, name.find('.'))).has_value();
    struct stat st;
    if (left == 0 || ours || fstatat(folder, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
    --left;
    FolderEntry entry;
    entry.name = name;
    entry.folder = S_ISDIR(st.st_mode);
    if (!entry.folder && !S_ISREG(st.st_mode)) continue;
    if (!entry.folder) look_into(folder, st, entry);
    if (entry.folder && depth < kDeepest) {
      const Fd below = open_folder_at(folder, name);
      if (below) entry.entries = list(below.get(), depth + 1, left);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

std::vector<FolderEntry> list_for_foreign(int folder) {
  size_t left = kMostEntries;
  return list(folder, 1, left);
}

}  // namespace hvd
