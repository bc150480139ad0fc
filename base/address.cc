#include "base/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>

namespace hvd {

namespace {

// 4 or 16 bytes, most significant first; none if it is no numeric address.
std::string bytes_of(const std::string& address) {
  std::array<char, sizeof(in6_addr)> bytes{};
  // inet_pton would take what stands before a zero byte for all.
  if (address.find('\0') != std::string::npos) return {};
  if (inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) {
    return {bytes.data(), sizeof(in_addr)};
  }
  if (inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1) {
    return {bytes.data(), sizeof(in6_addr)};
  }
  return {};
}

bool is_dialable_v4(const std::string& bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  const auto second = static_cast<unsigned char>(bytes[1]);
  return first != 0 && first != 127 && first < 224 && !(first == 169 && second == 254);
}

bool is_dialable_v6(const std::string& bytes) {
  in6_addr address;
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(&address));
  return !IN6_IS_ADDR_UNSPECIFIED(&address) && !IN6_IS_ADDR_LOOPBACK(&address) &&
         !IN6_IS_ADDR_LINKLOCAL(&address) && !IN6_IS_ADDR_MULTICAST(&address) &&
         !IN6_IS_ADDR_V4MAPPED(&address);
}

}  // namespace

bool is_dialable(const std::string& address) {
  const std::string bytes = bytes_of(address);
  if (bytes.empty()) return false;
  return bytes.size() == sizeof(in_addr) ? is_dialable_v4(bytes) : is_dialable_v6(bytes);
}

std::string network_of(const std::string& address, uint32_t prefix) {
  std::string bytes = bytes_of(address);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint32_t kept = prefix > 8 * i ? std::min<uint32_t>(prefix - 8 * i, 8) : 0;
    bytes[i] = static_cast<char>(bytes[i] & static_cast<char>(0xff << (8 - kept)));
  }
  return bytes;
}

std::string with_port(const std::string& address, uint32_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

}  // namespace hvd
