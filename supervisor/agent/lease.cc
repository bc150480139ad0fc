#include "supervisor/agent/lease.h"

#include <algorithm>

namespace hvd {

using namespace std::chrono_literals;

namespace {
constexpr Duration kShortestBeat = 20ms;
constexpr Duration kLongestSilence = 24h * 366;
}  // namespace

void Lease::set_silence(uint64_t silence_ns) {
  const auto most = static_cast<uint64_t>(kLongestSilence.count());
  silence_ =
      std::max(10 * kShortestBeat, Duration(static_cast<int64_t>(std::min(silence_ns, most))));
}

void Lease::set_survival(Duration length, Duration grace) {
  survival_ = length;
  grace_ = grace;
}

void Lease::lost(Time now) {
  stop_at_ = std::min(stop_at_, now + survival_);
}

void Lease::hold_from(Time heard) {
  const Duration patience = silence_ * 6 / 10;
  const Time alone_from = heard + patience, stop_at = heard + std::max(survival_, patience);
  const Time end = survival_ > Duration::zero() ? stop_at + grace_ + patience : alone_from;
  if (echoed_ && end < end_) return;
  echoed_ = true;
  alone_from_ = alone_from;
  if (survival_ > Duration::zero()) stop_at_ = stop_at;
  end_ = end;
}

void Lease::suspend(Time now) {
  alone_from_ = stop_at_ = end_ = now + kLongestSuspension;
}

void Lease::echoed(int64_t beat_time_ns, Time now) {
  const Time beat{Duration(beat_time_ns)};
  if (beat_time_ns < 0 || beat > now) return;
  hold_from(beat);
}

void Lease::resume(Time now) {
  echoed_ = false;
  hold_from(now);
}

Duration Lease::beat_period() const {
  return std::max(kShortestBeat, silence_ / 10);
}

}  // namespace hvd
