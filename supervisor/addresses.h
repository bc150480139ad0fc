// Which of its addresses each host is reached at by the ranks of other hosts. Pure.
//
// An address counts only when it is proven: others dialled it and this very host's agent answered
// (base/message.h, OpenProof). Names of cards decide nothing. Of the proven ones, the address that
// the launcher's own connection used is taken, else the one that shares its network with most other
// hosts, IPv4 before IPv6, else the first.
//
// Up to kAllPairs hosts each dials each other one. Beyond, each dials the hosts 1, 2, 4, 8, ...
// places after it in a circle, and the first, where rank 0 is: near and far ones, n log n dials and
// not n², 9 dials a host for 200 hosts. An address is proven when all who dialled it reached it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"

namespace hvd {

inline constexpr size_t kAllPairs = 16;

// Who dials whom, by host.
struct HostPair {
  uint32_t from = 0;
  uint32_t to = 0;
  friend bool operator==(const HostPair&, const HostPair&) = default;
};

// The pairs to prove among these hosts, in order of their ranks.
std::vector<HostPair> pairs_to_prove(const std::vector<uint32_t>& hosts);

// How the dials to one host's addresses ended, by address, for each host that dials it.
struct AddressDial {
  DialEnd end = DialEnd::pending;
  int32_t error = 0;
};
using DialsToHost = std::map<uint32_t, std::vector<AddressDial>>;

// What a host told about itself, without what no host can be dialled at: agents are not believed.
std::vector<HostAddress> usable_addresses(const std::vector<HostAddress>& told);

// For each of `hosts` (their addresses) the order in which its addresses are preferred, as indices.
// `known` is, for each, the address that the launcher's connection used; it may be empty.
std::vector<std::vector<uint32_t>> prefer_addresses(
    const std::vector<std::vector<HostAddress>>& hosts, const std::vector<std::string>& known);

struct AddressChoice {
  std::optional<uint32_t> address;  // none: none has been reached by all who dialled it
  bool final = false;               // no dial under way can change it
};
AddressChoice choose_address(const std::vector<uint32_t>& preferred, const DialsToHost& dials);

// A host that no address could be chosen for.
struct Unreached {
  std::string name;
  std::vector<HostAddress> addresses;
  uint32_t port = 0;
  const DialsToHost* dials = nullptr;
};
// A sentence and one line for each dial that failed, those with the same end together: "h1, h3 ->
// h2 at 10.0.0.2:4711: refused". `names` are those of all hosts.
std::string describe_unreached(const std::vector<Unreached>& hosts,
                               const std::vector<std::string>& names, const std::string& limit);

}  // namespace hvd
