#include "supervisor/addresses.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "base/address.h"

namespace hvd {

namespace {

constexpr size_t kLongestCard = 31;
// Of the table of a failure, and of the names in one of its lines.
constexpr size_t kMostLines = 20;
constexpr size_t kMostNames = 6;

bool is_card_name(const std::string& name) {
  return !name.empty() && name.size() <= kLongestCard &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > ' ' && c < 127; });
}

bool reached_any(const std::vector<AddressDial>& dials) {
  return std::any_of(dials.begin(), dials.end(),
                     [](const AddressDial& dial) { return dial.end == DialEnd::reached; });
}

std::string describe(const AddressDial& dial, const std::string& limit) {
  switch (dial.end) {
    case DialEnd::pending:
      return "its agent did not say";
    case DialEnd::refused:
      return "connection refused";
    case DialEnd::no_answer:
      return "no answer within " + limit;
    case DialEnd::stranger:
      return "the wrong machine answered";
    case DialEnd::failed:
    case DialEnd::reached:
      break;
  }
  return std::strerror(dial.error);
}

std::string list_names(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMostNames) {
    text += " and " + std::to_string(names.size() - kMostNames) + " more";
  }
  return text;
}

// Lines about one host.
std::vector<std::string> describe_one(const Unreached& host, const std::vector<std::string>& names,
                                      const std::string& limit) {
  if (host.addresses.empty()) return {host.name + " has no address that another host could dial"};
  // Who reached none of its addresses says most.
  const bool cut_off = std::any_of(host.dials->begin(), host.dials->end(),
                                   [](const auto& d) { return !reached_any(d.second); });
  std::vector<std::string> lines;
  for (size_t address = 0; address < host.addresses.size(); ++address) {
    std::map<std::string, std::vector<std::string>> who;  // by why
    for (const auto& [from, dials] : *host.dials) {
      const bool said = dials[address].end != DialEnd::reached && !(cut_off && reached_any(dials));
      if (said) who[describe(dials[address], limit)].push_back(names[from]);
    }
    for (const auto& [why, from] : who) {
      lines.push_back(list_names(from) + " -> " + host.name + " at " +
                      with_port(host.addresses[address].address, host.port) + " (" +
                      host.addresses[address].card + "): " + why);
    }
  }
  return lines;
}

}  // namespace

std::vector<HostPair> pairs_to_prove(const std::vector<uint32_t>& hosts) {
  std::vector<HostPair> pairs;
  const size_t count = hosts.size();
  for (size_t from = 0; from < count; ++from) {
    std::set<size_t> distances = {(count - from) % count};
    for (size_t far = 1; far < count; far = count <= kAllPairs ? far + 1 : far * 2) {
      distances.insert(far);
    }
    distances.erase(0);
    for (const size_t far : distances) pairs.push_back({hosts[from], hosts[(from + far) % count]});
  }
  return pairs;
}

std::vector<HostAddress> usable_addresses(const std::vector<HostAddress>& told) {
  std::vector<HostAddress> usable;
  for (const HostAddress& one : told) {
    if (usable.size() == kMostAddresses) break;
    if (is_card_name(one.card) && is_dialable(one.address)) usable.push_back(one);
  }
  return usable;
}

std::vector<std::vector<uint32_t>> prefer_addresses(
    const std::vector<std::vector<HostAddress>>& hosts, const std::vector<std::string>& known) {
  std::map<std::string, size_t> shared;  // hosts in each network
  for (const std::vector<HostAddress>& addresses : hosts) {
    std::set<std::string> networks;
    for (const HostAddress& one : addresses) networks.insert(network_of(one.address, one.prefix));
    for (const std::string& network : networks) ++shared[network];
  }
  std::vector<std::vector<uint32_t>> orders;
  for (size_t host = 0; host < hosts.size(); ++host) {
    const std::vector<HostAddress>& addresses = hosts[host];
    std::vector<uint32_t> order(addresses.size());
    std::iota(order.begin(), order.end(), 0);
    // Smaller is better.
    const auto rank = [&](uint32_t i) {
      const HostAddress& one = addresses[i];
      return std::tuple(one.address != known[host],
                        hosts.size() - shared[network_of(one.address, one.prefix)],
                        one.address.find(':') != std::string::npos);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return rank(a) < rank(b); });
    orders.push_back(std::move(order));
  }
  return orders;
}

AddressChoice choose_address(const std::vector<uint32_t>& preferred, const DialsToHost& dials) {
  bool better_pending = false;
  bool any_pending = false;
  for (const uint32_t address : preferred) {
    bool all = true;
    bool failed = false;
    bool pending = false;
    for (const auto& [from, ends] : dials) {
      const DialEnd end = ends[address].end;
      all = all && end == DialEnd::reached;
      pending = pending || end == DialEnd::pending;
      failed = failed || (end != DialEnd::reached && end != DialEnd::pending);
    }
    if (all) return {address, !better_pending};
    better_pending = better_pending || (pending && !failed);
    any_pending = any_pending || pending;
  }
  // Without a choice, the whole table is wanted.
  return {std::nullopt, !any_pending};
}

std::string describe_unreached(const std::vector<Unreached>& hosts,
                               const std::vector<std::string>& names, const std::string& limit) {
  std::string text =
      "the hosts do not reach each other: ranks need TCP connections between them, and only the "
      "launcher's own way to each host works";
  std::vector<std::string> lines;
  for (const Unreached& host : hosts) {
    const std::vector<std::string> more = describe_one(host, names, limit);
    lines.insert(lines.end(), more.begin(), more.end());
  }
  for (size_t i = 0; i < std::min(lines.size(), kMostLines); ++i) text += "\n  " + lines[i];
  if (lines.size() > kMostLines) {
    text += "\n  and " + std::to_string(lines.size() - kMostLines) + " more";
  }
  return text;
}

}  // namespace hvd
