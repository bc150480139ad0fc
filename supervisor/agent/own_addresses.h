// The network addresses of this host that other hosts may reach it at.
#pragma once

#include <string>
#include <vector>

#include "base/message.h"

namespace hvd {

// Addresses of cards that are up, kMostAddresses at most, in the kernel's order; without loopback
// and link-local ones, which mean another machine, or none, everywhere else.
std::vector<HostAddress> own_addresses();

// The value of NCCL_SOCKET_IFNAME that stands for this card alone. NCCL takes a plain name for the
// beginning of names: where another of `cards` begins the same way, the exact form with '=' is
// given.
std::string nccl_card(const std::string& card, const std::vector<std::string>& cards);

// Names of all network cards of this host.
std::vector<std::string> card_names();

}  // namespace hvd
