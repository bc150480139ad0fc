// Numeric network addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

// Of one host; more are neither told nor looked at.
inline constexpr size_t kMostAddresses = 16;

// Whether this is a numeric IPv4 or IPv6 address that one host can dial another at: not a loopback,
// link-local, multicast or unspecified one.
bool is_dialable(const std::string& address);

// The network of an address whose first `prefix` bits name it, as bytes that are equal for equal
// networks; empty if it is no numeric address.
std::string network_of(const std::string& address, uint32_t prefix);

// "10.0.0.2:4711", "[fd00::2]:4711".
std::string with_port(const std::string& address, uint32_t port);

}  // namespace hvd
