#include "supervisor/agent/facts.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/gpu_view.h"
#include "base/machine.h"

namespace hvd {

namespace {

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
  HostFacts facts;
  facts.hostname = own_hostname();
  facts.boot_id = read_boot_id();
  struct stat st;
  if (stat("/proc/self/ns/net", &st) == 0) facts.network = st.st_ino;
  facts.cores = count_cores();
  facts.devices = count_gpus();
  facts.gpus = visible_gpus(facts.devices);
  return facts;
}

}  // namespace hvd
