// Ctrl-Z: before the launcher stops, its agents are told to stop the ranks and to hold their
// leases, and answer. Pure: the owner sends, listens and stops.
//
//   TSTP -> Suspend to every agent that is up -> Suspended from each, or kPatience -> the launcher
//   stops; CONT -> Resume to every agent. An agent that did not answer goes by its lease.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "base/time.h"

namespace hvd {

class Suspension {
 public:
  static constexpr Duration kPatience = std::chrono::seconds(2);

  bool begun() const { return until_.has_value(); }
  void begin(std::set<uint32_t> hosts, Time now) {
    waiting_ = std::move(hosts);
    until_ = now + kPatience;
  }
  // The host answered or is gone.
  void heard(uint32_t host) { waiting_.erase(host); }
  // The launcher may stop.
  bool ready(Time now) const { return begun() && (waiting_.empty() || now >= *until_); }
  void end() { until_.reset(); }
  // When ready() at the latest.
  std::optional<Time> deadline() const { return until_; }

 private:
  std::set<uint32_t> waiting_;
  std::optional<Time> until_;
};

}  // namespace hvd
