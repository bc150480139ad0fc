#include "supervisor/checkpoints.h"

#include <doctest/doctest.h>

using namespace hvd;

namespace {

// Two hosts of two ranks each.
std::vector<Host> two_hosts() {
  std::vector<Host> hosts(2);
  hosts[0].name = "h1";
  hosts[1].name = "h2";
  for (Host& host : hosts) host.slots = 2;
  return hosts;
}

Manifest manifest_of(uint64_t step, uint32_t size, bool replicated) {
  Manifest manifest;
  manifest.job = "job";
  manifest.attempt = 3;
  manifest.step = step;
  manifest.size = size;
  manifest.replicated = replicated;
  for (uint32_t rank = 0; rank < size; ++rank) {
    const std::string state = replicated ? std::string(32, 'a') : "";
    manifest.shards.push_back({rank, 10, std::string(32, 'b'), state});
  }
  return manifest;
}

ListedCheckpoint listed(uint64_t step, std::vector<uint32_t> shards, bool replicated = true) {
  return {step, manifest_text(manifest_of(step, 4, replicated)), std::move(shards)};
}

Candidates find(const std::map<uint32_t, CheckpointsListed>& listings, FolderKind kind,
                uint32_t size = 4, const std::set<uint64_t>& rejected = {}) {
  const std::vector<Host> hosts = two_hosts();
  return find_candidates(listings, kind, hosts, *place(hosts, size), size, rejected);
}

CheckpointsListed listing(std::vector<ListedCheckpoint> found) {
  CheckpointsListed all;
  all.found = std::move(found);
  return all;
}

}  // namespace

TEST_CASE("k3: newest is the highest number, not the last name") {
  const auto found = find({{0, listing({listed(960000, {0, 1, 2, 3}), listed(1080000, {0, 1, 2, 3}),
                                        listed(90, {0, 1, 2, 3})})}},
                          FolderKind::shared);
  REQUIRE(found.usable.size() == 3);
  CHECK(found.usable[0].step == 1080000);
  CHECK(found.usable[2].step == 90);
  CHECK(found.skipped.empty());
  CHECK(found.last_attempt == 3);
}

TEST_CASE("each host verifies its own ranks' shards of a shared folder") {
  const auto found = find({{0, listing({listed(5, {0, 1, 2, 3})})}}, FolderKind::shared);
  REQUIRE(found.usable.size() == 1);
  const auto& by_host = found.usable[0].shards_by_host;
  CHECK(by_host.at(0) == std::vector<uint32_t>{0, 1});
  CHECK(by_host.at(1) == std::vector<uint32_t>{2, 3});
}

TEST_CASE("steps that are not whole are skipped with the reason") {
  ListedCheckpoint none{7, "", {0, 1, 2, 3}};
  ListedCheckpoint broken{8, "{", {0, 1, 2, 3}};
  ListedCheckpoint swapped = listed(5, {0, 1, 2, 3});
  swapped.step = 9;
  const auto found =
      find({{0, listing({none, broken, swapped, listed(10, {0, 1, 3})})}}, FolderKind::shared);
  CHECK(found.usable.empty());
  REQUIRE(found.skipped.size() == 4);
  CHECK(found.skipped[0] ==
        "checkpoint step-000000010 is not whole: rank-0002.safetensors is missing");
  CHECK(found.skipped[1] == "checkpoint step-000000009 is not whole: manifest.json is of step 5");
  CHECK(found.skipped[2].find("step-000000008 is not whole: manifest.json: ") != std::string::npos);
  CHECK(found.skipped[3].find("manifest.json is missing") != std::string::npos);
}

TEST_CASE("another number of ranks needs state that is the same on all") {
  const auto same = find({{0, listing({listed(5, {0, 1, 2, 3})})}}, FolderKind::shared, 2);
  CHECK(same.usable.size() == 1);
  const auto own = find({{0, listing({listed(5, {0, 1, 2, 3}, false)})}}, FolderKind::shared, 2);
  CHECK(own.usable.empty());
  REQUIRE(own.skipped.size() == 1);
  CHECK(own.skipped[0].find("saved by 4 ranks whose states differ, so it cannot serve 2") !=
        std::string::npos);
}

TEST_CASE("k5: separate folders: every host must have the step and its ranks' shards") {
  const auto whole = find({{0, listing({listed(5, {0, 1})})}, {1, listing({listed(5, {2, 3})})}},
                          FolderKind::separate);
  REQUIRE(whole.usable.size() == 1);
  CHECK(whole.usable[0].shards_by_host.at(1) == std::vector<uint32_t>{2, 3});

  const auto absent =
      find({{0, listing({listed(5, {0, 1})})}, {1, listing({})}}, FolderKind::separate);
  REQUIRE(absent.skipped.size() == 1);
  CHECK(absent.skipped[0] == "checkpoint step-000000005 is not whole: on h2 it is not there");

  const auto moved =
      find({{0, listing({listed(5, {2, 3}, false)})}, {1, listing({listed(5, {0, 1}, false)})}},
           FolderKind::separate);
  REQUIRE(moved.skipped.size() == 1);
  CHECK(moved.skipped[0].find("on h1 rank-0000.safetensors is missing") != std::string::npos);

  const auto any =
      find({{0, listing({listed(5, {3})})}, {1, listing({listed(5, {0})})}}, FolderKind::separate);
  CHECK(any.usable.size() == 1);
}

TEST_CASE("what ranks that were left saved serves all, by the shards there are") {
  Manifest manifest = manifest_of(5, 4, true);
  manifest.rescued = true;
  manifest.shards = {manifest.shards[1], manifest.shards[3]};
  const ListedCheckpoint one{5, manifest_text(manifest), {1, 3}};
  const auto found = find({{0, listing({one})}}, FolderKind::shared);
  REQUIRE(found.usable.size() == 1);
  CHECK(found.usable[0].shards_by_host.at(0) == std::vector<uint32_t>{1});
  CHECK(found.usable[0].shards_by_host.at(1) == std::vector<uint32_t>{3});
  const ListedCheckpoint torn{5, manifest_text(manifest), {0, 1, 2}};
  CHECK(find({{0, listing({torn})}}, FolderKind::shared).usable.empty());
  manifest.rescued = false;
  CHECK(!parse_manifest(manifest_text(manifest)).ok());
}

TEST_CASE("a step set aside is passed over without a word") {
  const auto found = find({{0, listing({listed(5, {0, 1, 2, 3}), listed(6, {0, 1, 2, 3})})}},
                          FolderKind::shared, 4, {6});
  REQUIRE(found.usable.size() == 1);
  CHECK(found.usable[0].step == 5);
  CHECK(found.skipped.empty());
}

TEST_CASE("the attempt goes on from the highest that ever saved here") {
  CheckpointsListed all = listing({listed(5, {0, 1, 2, 3})});
  all.last_draft = 9;
  CHECK(find({{0, all}}, FolderKind::shared).last_attempt == 9);
}

TEST_CASE("k5: the program's own checkpoint is the newest that every host has complete") {
  const auto on = [](std::vector<ListedForeign> foreign) {
    CheckpointsListed all;
    all.foreign = std::move(foreign);
    return all;
  };
  const ListedForeign ten{"step_10", "PyTorch DCP", 10, ""},
      twenty{"step_20", "PyTorch DCP", 20, ""},
      torn{"step_20", "PyTorch DCP", 20, ".metadata is missing"};
  const std::vector<Host> hosts = two_hosts();
  std::vector<std::string> skipped;
  CHECK(choose_foreign({{0, on({ten, twenty})}}, hosts, skipped)->step == 20);
  CHECK(skipped.empty());
  CHECK(choose_foreign({{0, on({ten, twenty})}, {1, on({ten})}}, hosts, skipped)->step == 10);
  CHECK(skipped ==
        std::vector<std::string>{
            "the PyTorch DCP checkpoint step_20 is not complete: on h2 it is not there"});
  CHECK(choose_foreign({{0, on({torn, ten})}}, hosts, skipped)->step == 10);
  CHECK(skipped.back().find("on h1 .metadata is missing") != std::string::npos);
  CHECK_FALSE(choose_foreign({{0, on({ten})}, {1, on({})}}, hosts, skipped));
}

TEST_CASE("pruning keeps the newest verified, at least two") {
  using Steps = std::vector<uint64_t>;
  CHECK(steps_to_prune({1, 2, 3, 4, 5}, {3, 4, 5}, 3) == Steps{1, 2});
  CHECK(steps_to_prune({1, 2, 3, 4, 5}, {4, 5}, 3).empty());
  CHECK(steps_to_prune({1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, 1) == Steps{1, 2, 3});
  CHECK(steps_to_prune({1, 2, 3, 4, 5, 9}, {2, 3}, 2) == Steps{1});
  CHECK(steps_to_prune({}, {}, 3).empty());
}

TEST_CASE("states are compared and the ranks that differ named") {
  CHECK(compare_states({"a", "a", "a"}).empty());
  CHECK(compare_states({}).empty());
  CHECK(compare_states({"a", "b", "a", "c"}) ==
        "the state loaded by rank 1, 3 differs from the other ranks'");
}
