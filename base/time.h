// One clock for every deadline: CLOCK_BOOTTIME, which goes on while a machine sleeps, so that a
// lease cannot outlive a suspend. Wall clock time is read only for stamps that people see.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace hvd {

using Duration = std::chrono::nanoseconds;

struct BootClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<BootClock>;
  static constexpr bool is_steady = true;
  static time_point now();
};

using Time = BootClock::time_point;

inline Time now() {
  return BootClock::now();
}

// The earlier of two optional times; none is later than any time.
std::optional<Time> earlier(std::optional<Time> a, std::optional<Time> b);

// Milliseconds to wait for poll(2) and epoll_wait(2) from `from` until `deadline`, rounded up, so
// that a wake-up is never too early; -1 without a deadline.
int poll_timeout(std::optional<Time> deadline, Time from);

// "10", "0.3", "250ms", "90s", "5m", "2h30m", "1d": a number without a unit counts seconds.
// The result is not negative and at most 100 years.
Result<Duration> parse_duration(std::string_view text);

// "0.3 s", "10 s", "2 min 5 s", for people.
std::string format_duration(Duration d);

// What came over a wire as nanoseconds: at most a year.
Duration bounded(uint64_t ns);

inline double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

// The wall clock as "2026-11-30T09:24:24.123Z".
std::string wall_clock_stamp();

}  // namespace hvd
