// Which rank holds up the others, told from what their agents see. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/message.h"

namespace hvd {

struct Suspect {
  uint32_t rank = 0;
  std::string why;      // "is stopped (state T)", after the rank's name; or nothing
  uint32_t others = 0;  // of whom the same can be said
};

// None if nothing tells the ranks apart. In this order: a process that is stopped; of ranks on
// libhvdcomm, one that has begun fewer collectives than others; one at a lower step; the only one
// that stalls.
std::optional<Suspect> find_suspect(const std::map<uint32_t, RankView>& ranks, uint64_t stall_ns);

}  // namespace hvd
