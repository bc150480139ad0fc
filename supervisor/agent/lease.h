// The lease arithmetic, in one place. Pure.
//
// Silence S is the launcher's --heartbeat-timeout. A beat goes out every S/10, at least 20 ms
// apart, with this machine's clock; the launcher's Echo brings it back; the lease holds until the
// echoed time + 0.6 S. Beats queued in a connection therefore do not extend it, and the launcher,
// which replaces a host only after S, never finds its old workers alive. A launcher that the user
// suspends (Ctrl-Z) says so before it stands still: then the lease is a week.
//
// A job may survive its launcher by D. From 0.6 S on nobody is heard; the job goes on, and whoever
// comes may attach. It is stopped when D is over, and the lease ends another 0.6 S behind the grace
// of that stop. The launcher, which replaces a host only after D + the grace + S, finds nobody.
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
  // The job survives its launcher by so long; then it is given the grace to stop.
  void set_survival(Duration length, Duration grace);
  // Its end of the connection was closed.
  void lost(Time now);
  // The launcher heard the beat of `beat_time`. A time of the future is none that was sent.
  void echoed(int64_t beat_time_ns, Time now);

  // The launcher announced that it will stand still for a while, at most kLongestSuspension.
  void suspend(Time now);
  // It goes on: from now it is as if it had just been heard.
  void resume(Time now);

  // Nobody was heard for so long that the launcher is taken for gone.
  bool is_alone(Time now) const { return now >= alone_from_; }
  // A job that survives its launcher stops then.
  Time stop_at() const { return stop_at_; }

  Time end() const { return end_; }
  bool over(Time now) const { return now >= end_; }
  Duration beat_period() const;

 private:
  void hold_from(Time heard);

  Duration silence_ = std::chrono::seconds(10);
  Duration survival_{}, grace_{};
  Time alone_from_ = Time::max(), stop_at_ = Time::max();
  bool echoed_ = false;
  Time end_;
};

}  // namespace hvd
