#include "base/time.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

namespace hvd {

using namespace std::chrono_literals;

BootClock::time_point BootClock::now() {
  timespec ts;
  clock_gettime(CLOCK_BOOTTIME, &ts);
  return time_point(std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec));
}

std::optional<Time> earlier(std::optional<Time> a, std::optional<Time> b) {
  if (!a) return b;
  if (!b) return a;
  return *a < *b ? a : b;
}

int poll_timeout(std::optional<Time> deadline, Time from) {
  if (!deadline) return -1;
  if (*deadline <= from) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*deadline - from).count();
  constexpr int64_t kLongest = 1'000'000'000;
  return static_cast<int>(ms < kLongest ? ms : kLongest);
}

namespace {

constexpr double kLongestSeconds = 100.0 * 366 * 86400;

// The seconds in one unit, or 0 for an unknown unit.
double unit_seconds(std::string_view unit) {
  if (unit == "ms") return 0.001;
  if (unit == "s") return 1;
  if (unit == "m" || unit == "min") return 60;
  if (unit == "h") return 3600;
  if (unit == "d") return 86400;
  return 0;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Reads decimal digits with at most one point from the front of `text`; -1 if there are none.
double take_number(std::string_view& text) {
  double value = 0;
  double scale = 0;
  size_t i = 0;
  size_t digits = 0;
  for (; i < text.size(); ++i) {
    if (is_digit(text[i])) {
      ++digits;
      if (scale > 0) {
        value += (text[i] - '0') * scale;
        scale /= 10;
      } else {
        value = value * 10 + (text[i] - '0');
      }
    } else if (text[i] == '.' && scale == 0) {
      scale = 0.1;
    } else {
      break;
    }
  }
  text.remove_prefix(i);
  return digits > 0 ? value : -1;
}

}  // namespace

Result<Duration> parse_duration(std::string_view text) {
  const Error error{"'" + std::string(text) +
                    "' is not a duration: expected seconds such as 10 or 0.3, or units such as "
                    "250ms, 90s, 5m, 2h30m"};
  std::string_view rest = text;
  double total = 0;
  bool first = true;
  while (!rest.empty() || first) {
    const double number = take_number(rest);
    if (number < 0) return error;
    size_t length = 0;
    while (length < rest.size() && !is_digit(rest[length]) && rest[length] != '.') ++length;
    const std::string_view unit = rest.substr(0, length);
    rest.remove_prefix(length);
    const double scale = first && unit.empty() && rest.empty() ? 1 : unit_seconds(unit);
    if (scale == 0) return error;
    total += number * scale;
    first = false;
  }
  if (total > kLongestSeconds) return error;
  return Duration(static_cast<int64_t>(std::llround(total * 1e9)));
}

Duration bounded(uint64_t ns) {
  constexpr auto kMost = static_cast<uint64_t>(Duration(std::chrono::hours(24 * 366)).count());
  return Duration(static_cast<int64_t>(std::min(ns, kMost)));
}

std::string format_duration(Duration d) {
  char text[64];
  const double s = seconds(d);
  if (s < 120) {
    std::snprintf(text, sizeof text, "%.3g s", s);
  } else {
    const auto whole = static_cast<long long>(s);
    if (whole < 7200) {
      std::snprintf(text, sizeof text, "%lld min %lld s", whole / 60, whole % 60);
    } else {
      std::snprintf(text, sizeof text, "%lld h %lld min", whole / 3600, whole % 3600 / 60);
    }
  }
  return text;
}

std::string wall_clock_stamp() {
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  tm parts;
  gmtime_r(&ts.tv_sec, &parts);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  char stamp[48];
  std::snprintf(stamp, sizeof stamp, "%s.%03ldZ", date, ts.tv_nsec / 1'000'000);
  return stamp;
}

}  // namespace hvd
