#include "supervisor/agent/facts.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <memory>
#include <string_view>

#include "base/fd.h"

namespace hvd {

namespace {

uint32_t count_cores() {
  constexpr int kMost = 8192;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMost),
                                                             [](cpu_set_t* s) { CPU_FREE(s); });
  const size_t bytes = CPU_ALLOC_SIZE(kMost);
  if (sched_getaffinity(0, bytes, set.get()) != 0) return 1;
  const int count = CPU_COUNT_S(bytes, set.get());
  return count > 0 ? static_cast<uint32_t>(count) : 1;
}

bool is_gpu(std::string_view name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name.size() > kPrefix.size() && name.substr(0, kPrefix.size()) == kPrefix &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string_view::npos;
}

uint32_t count_gpus() {
  const std::unique_ptr<DIR, int (*)(DIR*)> dev(opendir("/dev"), closedir);
  uint32_t count = 0;
  while (dev != nullptr) {
    const dirent* entry = readdir(dev.get());
    if (entry == nullptr) break;
    if (is_gpu(entry->d_name)) ++count;
  }
  return count;
}

std::string read_boot_id() {
  Result<std::string> text = read_file("/proc/sys/kernel/random/boot_id", 256);
  if (!text) return "";
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return *text;
}

}  // namespace

std::string own_hostname() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

HostFacts read_facts() {
  return {own_hostname(), read_boot_id(), count_cores(), count_gpus()};
}

}  // namespace hvd
