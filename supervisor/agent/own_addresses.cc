#include "supervisor/agent/own_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>

#include "base/address.h"

namespace hvd {

namespace {

// Bits that are set at the front of a netmask.
uint32_t prefix_of(const unsigned char* mask, size_t size) {
  uint32_t bits = 0;
  for (size_t i = 0; i < size; ++i) bits += static_cast<uint32_t>(std::popcount(mask[i]));
  return bits;
}

std::optional<HostAddress> describe(const ifaddrs& entry) {
  const int family = entry.ifa_addr->sa_family;
  const void* bytes = nullptr;
  const void* mask = nullptr;
  size_t size = 0;
  if (family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(entry.ifa_addr)->sin_addr;
    mask = entry.ifa_netmask == nullptr
               ? nullptr
               : &reinterpret_cast<const sockaddr_in*>(entry.ifa_netmask)->sin_addr;
    size = sizeof(in_addr);
  } else if (family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr;
    mask = entry.ifa_netmask == nullptr
               ? nullptr
               : &reinterpret_cast<const sockaddr_in6*>(entry.ifa_netmask)->sin6_addr;
    size = sizeof(in6_addr);
  }
  char text[INET6_ADDRSTRLEN] = "";
  if (bytes == nullptr || inet_ntop(family, bytes, text, sizeof text) == nullptr) {
    return std::nullopt;
  }
  HostAddress address{entry.ifa_name, text, 0};
  if (mask != nullptr) address.prefix = prefix_of(static_cast<const unsigned char*>(mask), size);
  return address;
}

}  // namespace

std::vector<HostAddress> own_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<HostAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (found.size() == kMostAddresses) break;
    const std::optional<HostAddress> address = describe(*entry);
    if (address && is_dialable(address->address)) found.push_back(*address);
  }
  return found;
}

std::vector<std::string> card_names() {
  std::vector<std::string> names;
  struct if_nameindex* cards = if_nameindex();
  if (cards == nullptr) return names;
  for (const struct if_nameindex* card = cards; card->if_name != nullptr; ++card) {
    names.emplace_back(card->if_name);
  }
  if_freenameindex(cards);
  return names;
}

std::string nccl_card(const std::string& card, const std::vector<std::string>& cards) {
  const bool shared = std::any_of(cards.begin(), cards.end(), [&](const std::string& other) {
    return other != card && other.starts_with(card);
  });
  return shared ? "=" + card : card;
}

}  // namespace hvd
