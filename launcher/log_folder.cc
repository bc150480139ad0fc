#include "launcher/log_folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>

#include "base/fd.h"

namespace hvd {

namespace {

constexpr std::string_view kAttempt = "attempt-";
constexpr uint32_t kMost = 1'000'000'000;

// The N of attempt-N; 0 for other names.
uint32_t number_of(std::string_view name) {
  if (!name.starts_with(kAttempt)) return 0;
  name.remove_prefix(kAttempt.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && end == name.data() + name.size() && number < kMost ? number : 0;
}

Result<uint32_t> newest(const std::string& dir) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(dir.c_str()), closedir);
  if (!folder) return errno_error("cannot read the log folder " + dir, errno);
  uint32_t last = 0;
  while (const dirent* entry = readdir(folder.get())) {
    last = std::max(last, number_of(entry->d_name));
  }
  return last;
}

}  // namespace

Result<uint32_t> claim_log_folder(const std::string& dir) {
  if (const Status made = make_folders(dir, 0777); !made) return made.error();
  const Result<uint32_t> last = newest(dir);
  if (!last) return last.error();
  const Result<uint32_t> first = claim_log_number(dir, *last + 1);
  if (!first) return first.error();
  return *first - 1;
}

Result<uint32_t> claim_log_number(const std::string& dir, uint32_t number) {
  // Another run may be counting here too: the folder is whose it is that made it.
  for (;; ++number) {
    const std::string folder = dir + "/" + log_folder_name(number);
    if (mkdir(folder.c_str(), 0777) == 0) return number;
    if (errno != EEXIST) return errno_error("cannot write logs: cannot make " + folder, errno);
  }
}

std::string log_folder_name(uint32_t number) {
  return std::string(kAttempt) + std::to_string(number);
}

std::string log_file(const std::string& dir, uint32_t number, uint32_t rank,
                     const std::string& host, Stream stream) {
  return dir + "/" + log_folder_name(number) + "/rank-" + std::to_string(rank) + "@" + host +
         (stream == Stream::out ? ".out" : ".err");
}

}  // namespace hvd
