#include "launcher/pause.h"

#include <algorithm>
#include <random>

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr Duration kFirstPause = 100ms;
constexpr Duration kLongestPause = 3s;

}  // namespace

Duration pause_before_try(int tries) {
  std::minstd_rand random(std::random_device{}());
  const int doublings = std::clamp(tries - 1, 0, 10);
  const Duration base = std::min<Duration>(kFirstPause * (1 << doublings), kLongestPause);
  return base / 2 + base * std::uniform_int_distribution<int>(0, 100)(random) / 100;
}

Time end_of_patience(Time started, Time deadline) {
  return started + (deadline - started) / 6;
}

}  // namespace hvd
