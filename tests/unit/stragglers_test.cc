// Which rank is slow.
#include "supervisor/stragglers.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// So many steps of all ranks that take the slowest one's own time each; the others wait for it.
struct Training {
  Stragglers stragglers;
  std::vector<Duration> own;
  uint64_t step = 1;
  Duration at{};
  std::vector<uint64_t> in_calls;
  uint32_t windows = 0;

  explicit Training(std::vector<Duration> times) : own(std::move(times)), in_calls(own.size()) {
    stragglers.begin(static_cast<uint32_t>(own.size()));
    tell();
  }
  void tell() {
    for (uint32_t rank = 0; rank < own.size(); ++rank) {
      // Clocks of hosts have nothing to do with each other.
      const int64_t clock = at.count() + rank * 1'000'000'000'000;
      stragglers.take(clock, {{rank, step, in_calls[rank]}});
    }
    windows += stragglers.judge() ? 1 : 0;
  }
  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      const Duration slowest = *std::max_element(own.begin(), own.end());
      for (size_t rank = 0; rank < own.size(); ++rank) {
        in_calls[rank] += static_cast<uint64_t>((slowest - own[rank] + 1ms).count());
      }
      at += slowest + 1ms;
      ++step;
      tell();
    }
  }
};

}  // namespace

TEST_CASE("n12: the rank that the others wait for stands out, and no longer when it is as fast") {
  Training training({100ms, 100ms, 300ms, 110ms});
  training.run(16);
  CHECK(training.windows == 0);
  training.run(1);
  CHECK(training.windows == 1);
  REQUIRE(training.stragglers.found());
  CHECK(training.stragglers.found()->rank == 2);
  CHECK(training.stragglers.found()->own == 300ms);
  CHECK(training.stragglers.found()->others == 100ms);
  training.own[2] = 120ms;
  training.run(100);
  CHECK(training.windows > 1);
  CHECK_FALSE(training.stragglers.found());
  training.own[0] = 1s;
  training.run(60);
  CHECK(training.stragglers.found()->rank == 0);
}

TEST_CASE("n12: small differences, one rank, and programs that wait elsewhere are no straggler") {
  for (const auto& times : std::vector<std::vector<Duration>>{
           {100ms, 190ms, 100ms}, {500ms}, {500ms, 500ms, 500ms, 500ms}}) {
    Training training(times);
    training.run(200);
    CHECK_FALSE(training.stragglers.found());
  }
  // Twice the time, but of next to nothing: what is left is the network's.
  Stragglers network;
  network.begin(2);
  for (uint64_t step = 1; step < 100; ++step) {
    const auto at = static_cast<int64_t>(step) * 1'000'000'000;
    network.take(at, {{0, step, step * 999'000'000}, {1, step, step * 990'000'000}});
    network.judge();
  }
  CHECK_FALSE(network.found());
}

TEST_CASE("n12: steps that go backwards, or are never told, are no measure") {
  Stragglers stragglers;
  stragglers.begin(2);
  stragglers.take(0, {{0, 500, 0}});
  stragglers.take(9'000'000'000, {{0, 3, 5}});
  stragglers.take(10'000'000'000, {{0, 900, 7}});
  CHECK_FALSE(stragglers.judge());
  stragglers.take(0, {{1, 1, 0}});
  stragglers.take(10'000'000'000, {{1, 900, UINT64_MAX}});
  stragglers.take(20'000'000'000, {{0, 1000, 0}, {1, 1000, 1}});
  stragglers.take(40'000'000'000, {{0, 1000, 0}, {1, 2000, 2}});
  CHECK_FALSE(stragglers.judge());
}
