// The lease arithmetic, in one place. Pure.
//
// Silence S is the launcher's --heartbeat-timeout. A beat goes out every S/10, at least 20 ms
// apart, with this machine's clock; the launcher's Echo brings it back; the lease holds until the
// echoed time + 0.6 S. Beats queued in a connection therefore do not extend it, and the launcher,
// which replaces a host only after S, never finds its old workers alive. A launcher that the user
// suspends (Ctrl-Z) says so before it stands still: then the lease is a week.
#pragma once

#include "base/time.h"

namespace hvd {

class Lease {
 public:
  static constexpr Duration kLongestSuspension = std::chrono::hours(24 * 7);

  // Before the first echo it ends at `end`.
  explicit Lease(Time end) : end_(end) {}

  // Limited to a year; 0 counts as the shortest that beats can keep.
  void set_silence(uint64_t silence_ns);
  // The launcher heard the beat of `beat_time`. A time of the future is none that was sent.
  void echoed(int64_t beat_time_ns, Time now);

  // The launcher announced that it will stand still for a while, at most kLongestSuspension.
  void suspend(Time now) { end_ = now + kLongestSuspension; }
  // It goes on: from now it is as if it had just been heard.
  void resume(Time now);

  Time end() const { return end_; }
  bool over(Time now) const { return now >= end_; }
  Duration beat_period() const;

 private:
  Duration silence_ = std::chrono::seconds(10);
  bool echoed_ = false;
  Time end_;
};

}  // namespace hvd
