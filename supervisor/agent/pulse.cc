#include "supervisor/agent/pulse.h"

#include <algorithm>

namespace hvd {

namespace {
// A checkpoint on a busy disk is given so many times the limit.
constexpr int kPatience = 10;
}  // namespace

void Pulse::sign(Time now) {
  last_ = now;
}

void Pulse::extend(Time now, Duration length) {
  sign(now);
  not_before_ = std::max(not_before_, now + length);
}

void Pulse::forgive(Duration gap) {
  if (last_) *last_ += gap;
  not_before_ += gap;
}

Pulse::Change Pulse::judge(Time now) {
  if (!last_) return Change::none;
  const bool late = now - *last_ >= limit_ * (patient_ ? kPatience : 1) && now >= not_before_;
  if (late == stalled_) return Change::none;
  stalled_ = late;
  return late ? Change::stalled : Change::moved;
}

Duration Pulse::quiet(Time now) const {
  return last_ ? std::max<Duration>(now - *last_, Duration::zero()) : Duration::zero();
}

}  // namespace hvd
