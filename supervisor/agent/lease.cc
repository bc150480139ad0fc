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

void Lease::echoed(int64_t beat_time_ns, Time now) {
  const Time beat{Duration(beat_time_ns)};
  if (beat_time_ns < 0 || beat > now) return;
  const Time end = beat + silence_ * 6 / 10;
  end_ = echoed_ ? std::max(end_, end) : end;
  echoed_ = true;
}

void Lease::resume(Time now) {
  end_ = now + silence_ * 6 / 10;
  echoed_ = true;
}

Duration Lease::beat_period() const {
  return std::max(kShortestBeat, silence_ / 10);
}

}  // namespace hvd
