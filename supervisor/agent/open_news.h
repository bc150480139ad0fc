// What a launcher that takes the job over must be told of the attempt as if it were new: which
// ranks run, which ended and how, what workers reported and wait to be answered, and reports that
// were answered here and may still be open on another host. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "base/message.h"

namespace hvd {

class OpenNews {
 public:
  // To the launcher.
  void sent(const FromAgent& message);
  // By the launcher. False for an answer to what no worker of this host waits for any more.
  bool heard(const ToAgent& message);

  std::vector<FromAgent> retell() const { return kept_; }

 private:
  // The answer for a step; older steps than it, if they were answered, are nobody's matter any
  // more.
  template <class Report>
  bool answered(uint64_t step, std::set<uint64_t>& open);

  std::vector<FromAgent> kept_;                 // in the order they were sent
  std::set<uint64_t> open_saves_, open_keeps_;  // by step
  std::set<uint32_t> open_rounds_;
  bool load_is_open_ = false;
};

}  // namespace hvd
