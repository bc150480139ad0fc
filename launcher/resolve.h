// Names to addresses, and a TCP connection to the first address that answers. Both wait, so they
// are called from threads beside the loop.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "base/time.h"

namespace hvd {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// "10.0.0.1" or "fd00::2": without port and scope.
std::string numeric_host(const Address& address);
// "10.0.0.1 port 22", for sentences.
std::string endpoint_text(const Address& address);

// The numeric addresses of a connected socket's far and near end; empty if it is not connected.
std::string peer_host(int socket);
std::string own_host(int socket);

struct LookupFailure {
  std::string text;           // the resolver's reason
  bool no_such_name = false;  // it has asked whoever knows; else another try may do better
};

// All TCP addresses of a name, in the order to try them; of `family` only, if it is AF_INET or
// AF_INET6. Blocks for as long as the resolver does.
std::variant<std::vector<Address>, LookupFailure> resolve(const std::string& name, uint16_t port,
                                                          int family = AF_UNSPEC);

struct ConnectFailure {
  std::string text;       // each address with its reason: "10.0.0.1 port 22: Connection refused"
  bool given_up = false;  // `cancel` became readable, or the deadline passed
};

// A connected, non-blocking TCP socket to the first of the addresses that accepts. Each gets a fair
// part of the time until `deadline`. Ends early when the descriptor `cancel` becomes readable.
// `from` is the own numeric address to connect from; empty: any.
std::variant<Fd, ConnectFailure> connect_first(const std::vector<Address>& addresses, Time deadline,
                                               int cancel, const std::string& from = "");

}  // namespace hvd
