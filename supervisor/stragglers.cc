#include "supervisor/stragglers.h"

#include <algorithm>
#include <utility>

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kLeastSteps = 10;
constexpr Duration kLeastTime = 5s;
constexpr int kTimesSlower = 2;
constexpr int kShareOfStep = 5;

// What agents tell can be anything.
int64_t difference(uint64_t from, uint64_t to) {
  return static_cast<int64_t>(std::min<uint64_t>(to - from, INT64_MAX));
}
int64_t difference(int64_t from, int64_t to) {
  return difference(static_cast<uint64_t>(from), static_cast<uint64_t>(to));
}

Duration per_step(int64_t time, uint64_t steps) {
  return Duration(std::max<int64_t>(time, 0) / difference(uint64_t{0}, steps));
}

}  // namespace

bool Stragglers::Window::whole() const {
  return last.step - first.step >= kLeastSteps &&
         difference(first.at, last.at) >= kLeastTime.count();
}

Duration Stragglers::Window::step() const {
  return per_step(difference(first.at, last.at), last.step - first.step);
}

Duration Stragglers::Window::own() const {
  const int64_t in_calls = difference(first.in_calls_ns, last.in_calls_ns);
  return per_step(difference(first.at, last.at) - in_calls, last.step - first.step);
}

void Stragglers::begin(uint32_t ranks) {
  ranks_ = ranks;
  whole_ = 0;
  windows_.clear();
  found_.reset();
}

void Stragglers::take(int64_t agent_time, const std::vector<RankStep>& steps) {
  for (const RankStep& one : steps) {
    const Sample sample{agent_time, one.step, one.in_calls_ns};
    Window& window = windows_.try_emplace(one.rank, Window{sample, sample}).first->second;
    // A program may count anew; what goes backwards is no measure.
    const Sample last = std::exchange(window.last, sample);
    const bool backwards = sample.step < last.step || sample.in_calls_ns < last.in_calls_ns;
    if (backwards || sample.at < last.at) window.first = sample;
    whole_ += window.whole() ? 1 : 0;
    whole_ -= std::exchange(window.counted, window.whole()) ? 1 : 0;
  }
}

bool Stragglers::judge() {
  if (ranks_ < 2 || whole_ < ranks_) return false;
  std::vector<std::pair<Duration, uint32_t>> owns;
  for (auto& [rank, window] : windows_) owns.emplace_back(window.own(), rank);
  std::sort(owns.begin(), owns.end());
  const auto [slowest, rank] = owns.back();
  const Duration median = owns[(owns.size() - 1) / 2].first;
  const bool stands_out =
      slowest >= kTimesSlower * median && slowest - median >= windows_[rank].step() / kShareOfStep;
  found_.reset();
  if (stands_out) found_ = Straggler{rank, slowest, median};
  whole_ = 0;
  for (auto& [number, window] : windows_) window = {window.last, window.last};
  return true;
}

}  // namespace hvd
