#include "launcher/resolve.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hvd {

using namespace std::chrono_literals;

namespace {

// An address that says nothing holds up the next one no longer than this.
constexpr Duration kLongestTry = 10s;

template <class Call>
std::string host_of(int socket, Call call) {
  Address address;
  address.length = sizeof address.storage;
  if (call(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return {};
  return numeric_host(address);
}

void set_option(int socket, int level, int option) {
  const int on = 1;
  setsockopt(socket, level, option, &on, sizeof on);
}

enum class Wait { ready, silent, cancelled };

Wait wait_writable(int socket, Time until, int cancel) {
  while (true) {
    pollfd fds[2] = {{socket, POLLOUT, 0}, {cancel, POLLIN, 0}};
    const int n = poll(fds, 2, poll_timeout(until, now()));
    if (n < 0 && errno == EINTR) continue;
    if (fds[1].revents != 0) return Wait::cancelled;
    if (fds[0].revents != 0) return Wait::ready;
    if (now() >= until) return Wait::silent;
  }
}

// False with errno: this machine has no such address, or the socket is of another family.
bool bind_to(int socket, const std::string& from, const Address& to) {
  if (from.empty()) return true;
  addrinfo hints{};
  hints.ai_family = to.storage.ss_family;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  errno = EAFNOSUPPORT;
  if (getaddrinfo(from.c_str(), nullptr, &hints, &found) != 0) return false;
  const bool bound = bind(socket, found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  return bound;
}

// Connects one socket; 0 or errno, or -1 when cancelled.
int connect_one(const Fd& socket, const Address& address, Time until, int cancel) {
  const auto* to = reinterpret_cast<const sockaddr*>(&address.storage);
  if (connect(socket.get(), to, address.length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  switch (wait_writable(socket.get(), until, cancel)) {
    case Wait::cancelled:
      return -1;
    case Wait::silent:
      return ETIMEDOUT;
    case Wait::ready:
      break;
  }
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

std::string numeric_host(const Address& address) {
  char host[NI_MAXHOST];
  const auto* sa = reinterpret_cast<const sockaddr*>(&address.storage);
  if (getnameinfo(sa, address.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  const std::string text = host;
  return text.substr(0, text.find('%'));
}

std::string endpoint_text(const Address& address) {
  uint16_t port = 0;
  if (address.storage.ss_family == AF_INET6) {
    port = ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  } else {
    port = ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  }
  return numeric_host(address) + " port " + std::to_string(port);
}

std::string peer_host(int socket) {
  return host_of(socket, getpeername);
}
std::string own_host(int socket) {
  return host_of(socket, getsockname);
}

std::variant<std::vector<Address>, LookupFailure> resolve(const std::string& name, uint16_t port,
                                                          int family) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    const std::string reason = code == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(code);
    return LookupFailure{reason, code == EAI_NONAME || code == EAI_NODATA};
  }
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    Address& address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

std::variant<Fd, ConnectFailure> connect_first(const std::vector<Address>& addresses, Time deadline,
                                               int cancel, const std::string& from) {
  ConnectFailure failure;
  for (size_t i = 0; i < addresses.size(); ++i) {
    const Address& address = addresses[i];
    const Time start = now();
    const Duration share = (deadline - start) / static_cast<int64_t>(addresses.size() - i);
    const Time until = start + std::min(share, kLongestTry);
    Fd socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const bool ready = socket && bind_to(socket.get(), from, address);
    const int error = ready ? connect_one(socket, address, until, cancel) : errno;
    if (error == 0) {
      set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY);
      set_option(socket.get(), SOL_SOCKET, SO_KEEPALIVE);
      return socket;
    }
    failure.given_up = error == -1 || now() >= deadline;
    if (failure.given_up) return failure;
    if (!failure.text.empty()) failure.text += "; ";
    failure.text += endpoint_text(address) + ": " + std::strerror(error);
  }
  return failure;
}

}  // namespace hvd
