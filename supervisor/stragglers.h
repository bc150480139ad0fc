// Which rank is slow: the one that the others wait for in collectives. Pure: what beats tell goes
// in.
//
// What a rank takes per step without its calls of libhvdcomm is its own time. Over a window of at
// least 10 steps and 5 s of every rank, a rank stands out whose own time is at least twice the
// median of the others', and that by a fifth of a step. Of programs that wait elsewhere all ranks
// take the same time, and none stands out. Times of one host are only ever subtracted from each
// other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/message.h"
#include "base/time.h"

namespace hvd {

struct Straggler {
  uint32_t rank = 0;
  Duration own{}, others{};  // per step; of the others the median
};

class Stragglers {
 public:
  // A new attempt of so many ranks.
  void begin(uint32_t ranks);
  // What changed at `agent_time` of their host.
  void take(int64_t agent_time, const std::vector<RankStep>& steps);
  // True at the end of a window; it is judged and a new one begins.
  bool judge();
  // As the last window had it.
  const std::optional<Straggler>& found() const { return found_; }

 private:
  struct Sample {
    int64_t at = 0;
    uint64_t step = 0, in_calls_ns = 0;
  };
  struct Window {
    Sample first, last;
    bool counted = false;  // in whole_
    bool whole() const;
    Duration step() const;  // one step's time, and of it the rank's own
    Duration own() const;
  };

  uint32_t ranks_ = 0, whole_ = 0;
  std::map<uint32_t, Window> windows_;
  std::optional<Straggler> found_;
};

}  // namespace hvd
