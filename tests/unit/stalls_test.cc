#include "supervisor/stalls.h"

#include <doctest/doctest.h>

using namespace hvd;

namespace {

constexpr uint64_t kStall = 1'000'000'000;

// Four ranks that are alike: in the same collective, at the same step, all quiet for too long.
std::map<uint32_t, RankView> alike() {
  std::map<uint32_t, RankView> ranks;
  for (uint32_t rank = 0; rank < 4; ++rank) ranks[rank] = {rank, 7, 20, 2 * kStall, 'S'};
  return ranks;
}

}  // namespace

TEST_CASE("ranks that are alike cannot be told apart") {
  CHECK_FALSE(find_suspect(alike(), kStall).has_value());
  CHECK_FALSE(find_suspect({}, kStall).has_value());
}

TEST_CASE("a stopped process is the suspect, whatever it counts") {
  for (const char state : {'T', 't'}) {
    auto ranks = alike();
    ranks[2].state = static_cast<unsigned char>(state);
    ranks[2].begun = 21;
    const auto suspect = find_suspect(ranks, kStall);
    REQUIRE(suspect.has_value());
    CHECK(suspect->rank == 2);
    CHECK(suspect->others == 0);
    CHECK(suspect->why == "is stopped (state T)");
  }
}

TEST_CASE("a rank that did not come to a collective is the suspect, not who waits in it") {
  auto ranks = alike();
  ranks[1].begun = 19;
  ranks[3].step = 6;
  const auto suspect = find_suspect(ranks, kStall);
  REQUIRE(suspect.has_value());
  CHECK(suspect->rank == 1);
  CHECK(suspect->why == "has begun collective 19 where others have reached 20");
}

TEST_CASE("without collectives the lowest step counts, and how many are there") {
  auto ranks = alike();
  ranks[0].step = ranks[3].step = 6;
  const auto suspect = find_suspect(ranks, kStall);
  REQUIRE(suspect.has_value());
  CHECK(suspect->rank == 0);
  CHECK(suspect->others == 1);
  CHECK(suspect->why == "is at step 6 where others have reached 7");
}

TEST_CASE("the only one that stalls is the suspect") {
  auto ranks = alike();
  for (auto& [rank, view] : ranks) view.quiet_ns = rank == 3 ? kStall : kStall / 10;
  const auto suspect = find_suspect(ranks, kStall);
  REQUIRE(suspect.has_value());
  CHECK(suspect->rank == 3);
  const auto alone = find_suspect({{0, {0, 1, 1, kStall, 'S'}}}, kStall);
  REQUIRE(alone.has_value());
  CHECK(alone->why.empty());
}
