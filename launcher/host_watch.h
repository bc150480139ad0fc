// The hosts of a job that discovers them: runs the script, believes what holds still, and keeps the
// job's list, which only grows. What the script cannot tell changes nothing and is worth a word.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/discovery.h"
#include "supervisor/host_list.h"
#include "supervisor/job.h"
#include "supervisor/policy.h"

namespace hvd {

class HostWatch {
 public:
  // The job, whose hosts were printed before, outlives this.
  explicit HostWatch(Job& job, Time now);

  int fd() const { return discovery_.fd(); }
  std::optional<Time> deadline() const { return earlier(discovery_.deadline(), list_.deadline()); }
  // Hosts that come for the first time are added to the job, as spares.
  std::optional<HostsListed> advance(Time now);
  // A sentence, each once a minute.
  std::string take_trouble() { return std::exchange(trouble_, {}); }

 private:
  uint32_t index_of(const Host& host);

  Job& job_;
  Discovery discovery_;
  HostList list_;
  std::string trouble_, told_;
  Time told_at_{};
};

// What the job makes of hosts as the script printed them: whether they are this machine, and key,
// port and slots where it named none.
void settle_discovered(const Job& job, std::vector<Host>& hosts);

}  // namespace hvd
