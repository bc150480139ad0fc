#include "base/machine.h"

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include <memory>
#include <string_view>

namespace hvd {

uint32_t count_cores() {
  constexpr int kMost = 8192;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMost),
                                                             [](cpu_set_t* s) { CPU_FREE(s); });
  const size_t bytes = CPU_ALLOC_SIZE(kMost);
  if (sched_getaffinity(0, bytes, set.get()) != 0) return 1;
  const int count = CPU_COUNT_S(bytes, set.get());
  return count > 0 ? static_cast<uint32_t>(count) : 1;
}

namespace {

bool is_gpu(std::string_view name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string_view::npos;
}

}  // namespace

uint32_t count_gpus() {
  // The driver's own device: without it there is no need to read the whole folder.
  if (access("/dev/nvidiactl", F_OK) != 0) return 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> dev(opendir("/dev"), closedir);
  uint32_t count = 0;
  while (dev != nullptr) {
    const dirent* entry = readdir(dev.get());
    if (entry == nullptr) break;
    if (is_gpu(entry->d_name)) ++count;
  }
  return count;
}

}  // namespace hvd
