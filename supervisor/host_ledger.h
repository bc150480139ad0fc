// What a run holds against its hosts: which of them fail again and again, and may hold no ranks for
// a while, or not any more. Pure: failures and the time go in.
//
// A failure is the host's own when its agent ends, falls silent or loses its connection, or does
// not stop its ranks in time; what a program does on it is not. The first one costs nothing: hosts
// are started again at once. From the second on the host cools down, for 10 s and twice as long
// each time, up to 5 minutes; with as many as the limit it is excluded. Ten minutes without a
// failure and all is forgotten.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"

namespace hvd {

class HostLedger {
 public:
  // `limit`: so many failures exclude a host; 0: hosts are always used.
  HostLedger(size_t hosts, uint32_t limit) : limit_(limit), records_(hosts) {}

  // Hosts that were not known before; nothing is held against them.
  void grow(size_t hosts) { records_.resize(hosts); }
  void failed(uint32_t host, Time now);
  void exclude(uint32_t host, Time now);
  // What another run of the launcher held against it: the last failure is taken for one of now.
  void restore(uint32_t host, uint32_t failures, bool excluded, Time now);
  // A rank of the host failed by itself. Returns how many such failures in a row were on this host.
  uint32_t rank_failed(uint32_t host);

  uint32_t failures(uint32_t host) const { return records_[host].failures; }
  bool excluded(uint32_t host) const { return records_[host].excluded; }
  // It should hold no ranks before then: cooling down, or excluded and the only one that can hold
  // them. The past: it may.
  Time cools_until(uint32_t host) const { return records_[host].cools_until; }
  bool usable(uint32_t host, Time now) const {
    return !records_[host].excluded && records_[host].cools_until <= now;
  }

 private:
  struct Record {
    uint32_t failures = 0;  // that are not forgotten
    Time last{};
    Time cools_until{};
    bool excluded = false;
  };

  const uint32_t limit_;
  std::vector<Record> records_;
  std::optional<uint32_t> rank_host_;  // of the last rank that failed
  uint32_t in_a_row_ = 0;
};

}  // namespace hvd
