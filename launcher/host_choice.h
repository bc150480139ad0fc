// Which of the hosts that were named take part: --include and --exclude. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "supervisor/host.h"

namespace hvd {

// One entry of a list such as "gpu[01-04],rack=a": a host's name, with ranges, or a label and its
// value.
struct HostChoice {
  std::string text;   // the entry as written
  std::string place;  // "--include", begins every error about it
};

// The hosts that are included (all of them if `include` is empty) and not excluded, in their order.
// An entry that fits no host, and a choice that leaves none, is an error.
Result<std::vector<Host>> choose_hosts(std::vector<Host> hosts,
                                       const std::vector<HostChoice>& include,
                                       const std::vector<HostChoice>& exclude);

}  // namespace hvd
