// Which rank runs where. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/message.h"
#include "supervisor/host.h"

namespace hvd {

inline constexpr uint32_t kMostRanks = 1'000'000;  // of one job

// Ranks of one host, by local rank. Hosts without ranks do not appear.
struct HostPlaces {
  uint32_t host = 0;       // index into the job's hosts
  uint32_t host_rank = 0;  // place among the hosts that hold ranks
  std::vector<Place> places;
};
using Placement = std::vector<HostPlaces>;

// Fills the hosts in order, slot by slot, with `size` ranks; spares get none. Cross rank is the
// place among hosts that have that local rank. The error names both numbers when the slots do not
// suffice.
Result<Placement> place(const std::vector<Host>& hosts, uint32_t size);

// The same ranks with `lost` replaced by `newcomer`: everyone else keeps theirs. The newcomer must
// have as many slots as the lost host had ranks and hold none yet.
Placement replace_host(const Placement& placement, uint32_t lost, uint32_t newcomer);

}  // namespace hvd
