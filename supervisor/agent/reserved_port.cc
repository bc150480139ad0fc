#include "supervisor/agent/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace hvd {

namespace {

// Binds to any free port of the family; 0 with errno if it cannot.
uint16_t bind_any(const Fd& socket, int family) {
  sockaddr_storage address{};
  address.ss_family = static_cast<sa_family_t>(family);
  socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket.get(), generic, length) != 0) return 0;
  if (getsockname(socket.get(), generic, &length) != 0) return 0;
  const in_port_t port = family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  return ntohs(port);
}

}  // namespace

Result<ReservedPort> ReservedPort::take() {
  ReservedPort port;
  for (const int family : {AF_INET6, AF_INET}) {
    port.socket_ = Fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!port.socket_) continue;
    const int off = 0;
    if (family == AF_INET6) {
      setsockopt(port.socket_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    port.number_ = bind_any(port.socket_, family);
    if (port.number_ != 0) break;
  }
  if (port.number_ == 0) return errno_error("cannot reserve a TCP port", errno);
  return port;
}

// Only once it is bound: with the option from the start, the kernel could give two holders the same
// port.
void ReservedPort::lend() {
  const int on = 1;
  setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

}  // namespace hvd
