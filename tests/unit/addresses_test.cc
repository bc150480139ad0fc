// Which hosts dial which, and which address is chosen.
#include "supervisor/addresses.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "base/address.h"

using namespace hvd;

namespace {

std::vector<uint32_t> first_hosts(uint32_t count) {
  std::vector<uint32_t> hosts;
  for (uint32_t i = 0; i < count; ++i) hosts.push_back(i);
  return hosts;
}

std::vector<AddressDial> ends(std::vector<DialEnd> list) {
  std::vector<AddressDial> dials;
  for (const DialEnd end : list) dials.push_back({end, 0});
  return dials;
}

constexpr DialEnd kReached = DialEnd::reached;
constexpr DialEnd kPending = DialEnd::pending;
constexpr DialEnd kNoAnswer = DialEnd::no_answer;

}  // namespace

TEST_CASE("few hosts dial all others, many only some, near and far") {
  CHECK(pairs_to_prove({7}).empty());
  CHECK(pairs_to_prove({7, 3}) == std::vector<HostPair>{{7, 3}, {3, 7}});
  CHECK(pairs_to_prove(first_hosts(16)).size() == 16 * 15);
  const std::vector<HostPair> pairs = pairs_to_prove(first_hosts(200));
  CHECK(pairs.size() <= 200 * 9);
  std::map<uint32_t, std::set<uint32_t>> by;
  for (const HostPair& pair : pairs) {
    CHECK(pair.from != pair.to);
    CHECK(by[pair.to].insert(pair.from).second);
  }
  // All go to rank 0's; each is dialled by its neighbour and from the other end of the circle.
  CHECK(by[0].size() == 199);
  for (uint32_t host = 1; host < 200; ++host) {
    CHECK(by[host].size() >= 8);
    CHECK(by[host].count(host - 1) == 1);
    CHECK(by[host].count((host + 200 - 128) % 200) == 1);
  }
}

TEST_CASE("what an agent tells about its addresses is not believed") {
  const HostAddress good{"eth0", "10.0.0.1", 24};
  const HostAddress also{"eth0:1", "fd00::1", 64};
  CHECK(usable_addresses({good,
                          {"lo", "127.0.1.1", 8},
                          {"lo", "::1", 128},
                          {"eth0", "169.254.1.1", 16},
                          {"eth0", "fe80::1", 64},
                          {"eth0", "0.0.0.0", 0},
                          {"eth0", "::", 0},
                          {"eth0", "::ffff:127.0.0.1", 128},
                          {"eth0", "224.0.0.1", 4},
                          {"eth0", "ff02::1", 8},
                          {"eth0", "h1", 24},
                          {"eth0", "-oProxyCommand=x", 24},
                          {"eth0", "10.0.0.1\n", 24},
                          {"eth0", std::string("10.0.0.1\0;x", 11), 24},
                          {"eth0", "", 24},
                          {"", "10.0.0.2", 24},
                          {"eth\x1b[0m", "10.0.0.2", 24},
                          {std::string(64, 'e'), "10.0.0.2", 24},
                          also}) == std::vector<HostAddress>{good, also});
  CHECK(usable_addresses(std::vector<HostAddress>(1000, good)).size() == 16);
}

TEST_CASE("networks are compared by their bits") {
  CHECK(network_of("10.1.2.3", 16) == network_of("10.1.200.3", 16));
  CHECK(network_of("10.1.2.3", 24) != network_of("10.1.200.3", 24));
  CHECK(network_of("10.1.2.3", 31) != network_of("10.1.2.1", 31));
  CHECK(network_of("fd00::1", 64) == network_of("fd00::ffff:1", 64));
  CHECK(network_of("fd00::1", 128) != network_of("fd00::2", 128));
  CHECK(network_of("10.0.0.1", 0) == network_of("11.0.0.1", 0));
  CHECK(network_of("10.0.0.1", 4000000000) == network_of("10.0.0.1", 32));
  CHECK(network_of("nonsense", 8).empty());
}

TEST_CASE("the launcher's own way is preferred, then a shared network, then IPv4") {
  const HostAddress v6{"eth0", "fd00::1", 64};
  const HostAddress lonely{"wlan0", "192.168.7.1", 24};
  const HostAddress shared{"eth1", "10.0.0.1", 24};
  const HostAddress other{"eth1", "10.0.0.2", 24};
  const HostAddress other6{"eth0", "fd00::2", 64};
  const std::vector<std::vector<HostAddress>> hosts = {{lonely, v6, shared}, {other6, other}};
  CHECK(prefer_addresses(hosts, {"", ""}) == std::vector<std::vector<uint32_t>>{{2, 1, 0}, {1, 0}});
  CHECK(prefer_addresses(hosts, {"192.168.7.1", "fd00::2"}) ==
        std::vector<std::vector<uint32_t>>{{0, 2, 1}, {0, 1}});
  // The launcher came by an address that the host itself does not have.
  CHECK(prefer_addresses(hosts, {"203.0.113.9", ""}).front() == std::vector<uint32_t>{2, 1, 0});
}

TEST_CASE("an address is chosen when all who dialled it reached it") {
  const auto choose = [](std::vector<DialEnd> one, std::vector<DialEnd> two) {
    const AddressChoice choice =
        choose_address({1, 0}, {{4, ends(std::move(one))}, {5, ends(std::move(two))}});
    return std::pair(choice.address ? static_cast<int>(*choice.address) : -1, choice.final);
  };
  CHECK(choose({kReached, kReached}, {kReached, kReached}) == std::pair(1, true));
  // Nothing is waited for that is not preferred.
  CHECK(choose({kPending, kReached}, {kPending, kReached}) == std::pair(1, true));
  CHECK(choose({kReached, kPending}, {kReached, kReached}) == std::pair(0, false));
  CHECK(choose({kReached, kNoAnswer}, {kReached, kPending}) == std::pair(0, true));
  CHECK(choose({kReached, kNoAnswer}, {kNoAnswer, kPending}) == std::pair(-1, false));
  CHECK(choose({kReached, kNoAnswer}, {kNoAnswer, kReached}) == std::pair(-1, true));
}

TEST_CASE("a failure names both ends, the port and why") {
  const DialsToHost dials = {
      {0, {{DialEnd::refused, 0}, {kNoAnswer, 0}}},
      {2, {{DialEnd::refused, 0}, {DialEnd::stranger, 0}}},
      {3, {{DialEnd::failed, 113}, {kReached, 0}}},
  };
  const Unreached host{"h2", {{"eth0", "10.0.0.2", 24}, {"docker0", "fd17::1", 16}}, 4711, &dials};
  const std::string text = describe_unreached({host}, {"h1", "h2", "h3", "h4"}, "5 s");
  for (const char* line :
       {"\n  h1, h3 -> h2 at 10.0.0.2:4711 (eth0): connection refused",
        "\n  h1 -> h2 at [fd17::1]:4711 (docker0): no answer within 5 s",
        "\n  h3 -> h2 at [fd17::1]:4711 (docker0): the wrong machine answered"}) {
    CHECK_MESSAGE(text.find(line) != std::string::npos, text);
  }
  // h4 reached it: those who did not at all say more.
  CHECK(text.find("h4 ->") == std::string::npos);
}

TEST_CASE("a table of failures stays small") {
  std::vector<std::string> names;
  DialsToHost dials;
  for (uint32_t i = 0; i < 200; ++i) {
    names.push_back("node" + std::to_string(i));
    dials[i] = {{DialEnd::failed, static_cast<int32_t>(i % 100)}};
  }
  const Unreached host{"last", {{"eth0", "10.0.0.2", 24}}, 4711, &dials};
  const std::string text = describe_unreached({host}, names, "5 s");
  CHECK(std::count(text.begin(), text.end(), '\n') <= 21);
  CHECK(text.find("more") != std::string::npos);
}
