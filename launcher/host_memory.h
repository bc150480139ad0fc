// What earlier runs of this user held against hosts: a file of lines, one for each failure that was
// a host's own. A hint and never a refusal: who types a host again may have mended it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

struct HostFailure {
  int64_t at = 0;  // seconds since 1970
  std::string host, reason;
};

std::string host_failure_line(const HostFailure& failure);

// Those of the last day, oldest first; lines that are none are passed over.
std::vector<HostFailure> recent_failures(std::string_view text, int64_t now);

// A sentence for each of these hosts that failed: how often, and how the last time.
std::vector<std::string> describe_failures(const std::vector<HostFailure>& failures,
                                           const std::vector<std::string>& hosts);

}  // namespace hvd
