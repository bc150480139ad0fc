#include "comm/tcp_links.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "comm/header.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
// A link closes a little before the agent has told why; its words are better than ours.
constexpr Duration kAgentsWord = 100ms;
}  // namespace

TcpLinks::TcpLinks(uint32_t rank, std::vector<Fd> sockets, AgentWire& agent)
    : Links(rank, static_cast<uint32_t>(sockets.size())),
      sockets_(std::move(sockets)),
      left_(sockets_.size(), false),
      agent_(agent) {}

Outcome TcpLinks::send(uint32_t peer, std::span<const char> bytes, size_t& moved) {
  moved = 0;
  const ssize_t n = ::send(sockets_[peer].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (n >= 0) {
    moved = static_cast<size_t>(n);
  } else if (errno != EAGAIN && errno != EINTR) {
    // A rank that finalized may have left; what it said last is still to be read.
    if ((errno == EPIPE || errno == ECONNRESET) && said_farewell(sockets_[peer].get())) {
      moved = bytes.size();
    } else {
      return lost(peer, std::strerror(errno));
    }
  }
  return {};
}

Outcome TcpLinks::receive(uint32_t peer, std::span<char> bytes, size_t& moved) {
  moved = 0;
  const ssize_t n = recv(sockets_[peer].get(), bytes.data(), bytes.size(), 0);
  if (n > 0) {
    moved = static_cast<size_t>(n);
  } else if (n == 0) {
    return lost(peer, "it closed the connection");
  } else if (errno != EAGAIN && errno != EINTR) {
    return lost(peer, std::strerror(errno));
  }
  return {};
}

Outcome TcpLinks::wait(const std::vector<Want>& wants, std::optional<Time> deadline) {
  // All links are watched, so that the end of a rank is noticed by those who wait for another one,
  // before the failures that follow from it.
  polled_.clear();
  for (uint32_t peer = 0; peer < size(); ++peer) {
    const bool watched = peer != rank() && !left_[peer];
    polled_.push_back({watched ? sockets_[peer].get() : -1, POLLRDHUP, 0});
  }
  polled_.push_back({agent_.fd(), POLLIN, 0});
  for (const Want& want : wants) {
    pollfd& item = polled_[want.peer];
    item.fd = sockets_[want.peer].get();
    item.events = static_cast<short>((want.send ? POLLOUT : 0) | (want.receive ? POLLIN : 0));
  }
  if (poll(polled_.data(), polled_.size(), poll_timeout(deadline, now())) < 0) {
    if (errno == EINTR) return {};
    return {HVD_SYSTEM_ERROR, errno_error("cannot wait for the links", errno).text};
  }
  if (polled_.back().revents != 0) {
    const Outcome told = agent_.check();
    if (!told) return told;
  }
  for (const Want& want : wants) polled_[want.peer].revents = 0;
  for (uint32_t peer = 0; peer < size(); ++peer) {
    if (polled_[peer].revents == 0) continue;
    const Outcome closed = look_at_closed(peer);
    if (!closed) return closed;
  }
  return {};
}

// A link nobody reads at the moment has ended. What it holds is read when it is wanted: the rest of
// this collective, a farewell, or the last words of a rank that was killed, and which of them it is
// shows then. Empty, it can only be a rank that is gone.
Outcome TcpLinks::look_at_closed(uint32_t peer) {
  char byte = 0;
  if (recv(sockets_[peer].get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) {
    return lost(peer, "it closed the connection");
  }
  left_[peer] = true;
  return {};
}

// True if the only thing left to read is the header of a finalize.
bool TcpLinks::said_farewell(int fd) const {
  char bytes[kHeaderSize + 1];
  if (recv(fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT) != kHeaderSize) return false;
  HeaderBytes header;
  std::memcpy(header.data(), bytes, kHeaderSize);
  const auto decoded = decode_header(header);
  return decoded && decoded->op == Op::finalize;
}

bool TcpLinks::ended(int fd) const {
  pollfd item{fd, POLLRDHUP, 0};
  return poll(&item, 1, 0) == 1 && (item.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 &&
         !said_farewell(fd);
}

Outcome TcpLinks::lost(uint32_t peer, const std::string& why) {
  const Outcome told = agent_.check_within(kAgentsWord);
  if (told.code() == HVD_PEER_FAILED) return told;
  std::vector<uint32_t> gone;
  for (uint32_t other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    if (other == peer || ended(sockets_[other].get())) gone.push_back(other);
  }
  return {HVD_PEER_FAILED,
          "rank " + std::to_string(rank()) + " lost its link to " + name_ranks(gone) + ": " + why};
}

void TcpLinks::flush(Time deadline) {
  char trash[65536];
  while (now() < deadline) {
    bool queued = false;
    for (Fd& socket : sockets_) {
      if (!socket) continue;
      // Closing a socket that holds unread bytes would take back what was sent on it.
      while (recv(socket.get(), trash, sizeof trash, MSG_DONTWAIT) > 0) {
      }
      int bytes = 0;
      pollfd item{socket.get(), 0, 0};
      const bool dead = poll(&item, 1, 0) == 1 && (item.revents & (POLLERR | POLLHUP)) != 0;
      if (!dead && ioctl(socket.get(), SIOCOUTQ, &bytes) == 0 && bytes > 0) queued = true;
    }
    if (!queued) return;
    // Nothing to poll for: the kernel does not tell when a queue has become empty.
    poll(nullptr, 0, 1);
  }
}

void TcpLinks::close() {
  for (Fd& socket : sockets_) {
    if (socket) shutdown(socket.get(), SHUT_RDWR);
  }
}

}  // namespace hvd
