#include "supervisor/placement.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace hvd;

namespace {

Host host(const std::string& name, uint32_t slots, bool spare = false) {
  Host made;
  made.name = made.address = name;
  made.slots = slots;
  made.spare = spare;
  return made;
}

// "host/host_rank: rank.local.cross/cross_size ..." for each host that holds ranks.
std::string text(const Placement& placement) {
  std::string out;
  for (const HostPlaces& places : placement) {
    out += (out.empty() ? "" : "; ") + std::to_string(places.host) + "/" +
           std::to_string(places.host_rank) + ":";
    for (const Place& p : places.places) {
      out += " " + std::to_string(p.rank) + "." + std::to_string(p.local_rank) + "." +
             std::to_string(p.cross_rank) + "/" + std::to_string(p.cross_size);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("j1: ranks fill the hosts in their order, slot by slot") {
  struct Row {
    std::vector<Host> hosts;
    uint32_t size;
    const char* expected;
  };
  const std::vector<Row> rows = {
      {{host("h1", 4)}, 1, "0/0: 0.0.0/1"},
      {{host("h1", 2), host("h2", 2)}, 4, "0/0: 0.0.0/2 1.1.0/2; 1/1: 2.0.1/2 3.1.1/2"},
      {{host("h2", 2), host("h1", 2)}, 3, "0/0: 0.0.0/2 1.1.0/1; 1/1: 2.0.1/2"},
      {{host("h1", 2), host("h2", 2), host("h3", 2)}, 2, "0/0: 0.0.0/1 1.1.0/1"},
      // The first has more slots, whatever the names say.
      {{host("b", 3), host("a", 1)}, 4, "0/0: 0.0.0/2 1.1.0/1 2.2.0/1; 1/1: 3.0.1/2"},
      // Uneven: local rank 2 exists on the first and last host only.
      {{host("a", 3), host("b", 1), host("c", 3)},
       7,
       "0/0: 0.0.0/3 1.1.0/2 2.2.0/2; 1/1: 3.0.1/3; 2/2: 4.0.2/3 5.1.1/2 6.2.1/2"},
      // A spare first, in the middle and last holds nothing and counts for nothing.
      {{host("s", 8, true), host("a", 1), host("t", 8, true), host("b", 1), host("u", 1, true)},
       2,
       "1/0: 0.0.0/2; 3/1: 1.0.1/2"},
  };
  for (const Row& row : rows) {
    const auto placed = place(row.hosts, row.size);
    REQUIRE(placed.ok());
    CHECK(text(*placed) == row.expected);
  }
}

TEST_CASE("too many ranks: the error names both numbers and the hosts") {
  const auto placed = place({host("h1", 2), host("h2", 2), host("spare", 9, true)}, 5);
  REQUIRE_FALSE(placed.ok());
  CHECK(placed.error().text == "5 ranks do not fit: the hosts have 4 slots (h1: 2, h2: 2)");

  std::vector<Host> many(20, host("n", 1));
  const auto crowd = place(many, 21);
  REQUIRE_FALSE(crowd.ok());
  CHECK(crowd.error().text.find("and 12 more hosts") != std::string::npos);

  const auto spares = place({host("s", 4, true)}, 1);
  REQUIRE_FALSE(spares.ok());
  CHECK(spares.error().text == "no host can hold a rank: every one of them is a spare");
}

TEST_CASE("j2: a newcomer takes exactly the lost host's ranks") {
  const std::vector<Host> hosts = {host("a", 2), host("b", 1), host("c", 2), host("s", 2, true)};
  const auto placed = place(hosts, 5);
  REQUIRE(placed.ok());
  const Placement replaced = replace_host(*placed, 2, 3);
  CHECK(text(*placed) == "0/0: 0.0.0/3 1.1.0/2; 1/1: 2.0.1/3; 2/2: 3.0.2/3 4.1.1/2");
  CHECK(text(replaced) == "0/0: 0.0.0/3 1.1.0/2; 1/1: 2.0.1/3; 3/2: 3.0.2/3 4.1.1/2");
  // Back again: the same as before.
  CHECK(text(replace_host(replaced, 3, 2)) == text(*placed));
  // Rank 0's host can be replaced as well.
  CHECK(text(replace_host(*placed, 0, 3)) ==
        "3/0: 0.0.0/3 1.1.0/2; 1/1: 2.0.1/3; 2/2: 3.0.2/3 4.1.1/2");
}
