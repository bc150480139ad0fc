#include "supervisor/agent/worker_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "supervisor/agent/job_name.h"
#include "supervisor/agent/unix_socket.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr Duration kJoinLimit = 10s;
// Connections beyond one per rank: workers' first words, and strangers of the same user.
constexpr size_t kMoreConnections = 64;
// A worker that lets this much wait for it does not read at all.
constexpr size_t kMostUnsent = 64u << 20;
// Notices kept until they are taken: a worker that goes wrong in a loop is told of often enough.
constexpr size_t kMostNotices = 16;
// Words of a worker that end up in messages to people.
constexpr size_t kLongestText = 4096;

// Descriptors that wait for their messages: one each, and few messages have one.
constexpr size_t kMostDescriptors = 8;

void take_descriptors(msghdr& header, std::deque<Fd>& descriptors) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof number);
      Fd fd(number);
      if (descriptors.size() < kMostDescriptors) descriptors.push_back(std::move(fd));
    }
  }
}

void cut(std::string& text) {
  if (text.size() > kLongestText) text.resize(kLongestText);
}

// Puts the connection's attempt and rank where the worker could write any. False for a Join.
struct Stamp {
  uint32_t attempt, rank;

  bool operator()(Join&) const { return false; }
  bool operator()(Finalized&) const { return true; }
  bool operator()(ExchangeBlob& m) const { return mark(m); }
  bool operator()(StateLoaded& m) const {
    cut(m.error);
    cut(m.state_digest);
    return mark(m);
  }
  bool operator()(WorkerAborted& m) const {
    cut(m.reason);
    return mark(m);
  }
  bool operator()(ShardSaved& m) const {
    cut(m.error);
    m.attempt = attempt;
    m.shard.rank = rank;
    return true;
  }
  bool operator()(ShardKept& m) const {
    cut(m.error);
    cut(m.shard.digest);
    cut(m.shard.state_digest);
    m.attempt = attempt;
    m.shard.rank = rank;
    return true;
  }

 private:
  template <class M>
  bool mark(M& m) const {
    m.attempt = attempt;
    m.rank = rank;
    return true;
  }
};

}  // namespace

Result<WorkerSocket> WorkerSocket::open(Poller& poller, const std::string& path) {
  Result<Fd> socket = bind_unix_socket(path, SOCK_STREAM);
  if (!socket) return socket.error();
  if (listen(socket->get(), 1024) != 0) return errno_error("cannot listen on " + path, errno);
  return WorkerSocket(poller, WatchedFd(poller, std::move(*socket), poll_name(Source::listener)));
}

void WorkerSocket::begin(uint32_t attempt, std::vector<Guest> guests) {
  end();
  attempt_ = attempt;
  for (Guest& guest : guests) {
    const uint32_t rank = guest.welcome.rank;
    seats_[rank] = Seat{std::move(guest), 0};
  }
}

void WorkerSocket::end() {
  connections_.clear();
  seats_.clear();
}

void WorkerSocket::accept_waiting(Time now) {
  while (true) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && errno == EINTR) continue;
    if (!fd) return;
    if (!is_same_user(fd.get()) || connections_.size() >= seats_.size() + kMoreConnections)
      continue;
    const uint64_t serial = ++last_serial_;
    connections_.emplace(serial, Connection{WatchedFd(*poller_, std::move(fd),
                                                      poll_name(Source::connection, serial)),
                                            now + kJoinLimit,
                                            {},
                                            {},
                                            {},
                                            {},
                                            {}});
  }
}

bool WorkerSocket::read_once(Connection& connection, bool& more) {
  char block[65536];
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  iovec part{block, sizeof block};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(connection.socket.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  more = n > 0;
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  take_descriptors(header, connection.descriptors);
  connection.reader.feed({block, static_cast<size_t>(n)});
  return n > 0;
}

bool WorkerSocket::take_join(uint64_t serial, Connection& connection, const FromWorker& message) {
  const Join* join = std::get_if<Join>(&message);
  if (join == nullptr) {
    notice(connection, "spoke before it joined");
    return false;
  }
  if (join->protocol != kProtocol) {
    notice(connection, "uses a libhvdcomm of protocol " + std::to_string(join->protocol) +
                           ", this hvdlaunch speaks " + std::to_string(kProtocol));
    return false;
  }
  const auto seat = seats_.find(join->rank);
  if (join->attempt != attempt_ || seat == seats_.end() || seat->second.serial != 0) {
    notice(connection, "tried to join as rank " + std::to_string(join->rank) + " of attempt " +
                           std::to_string(join->attempt) +
                           ", which is not of this host and attempt, or has joined already");
    return false;
  }
  seat->second.serial = serial;
  connection.rank = join->rank;
  connection.beside = std::move(seat->second.guest.kept);
  return send(connection, to_frame(ToWorker(seat->second.guest.welcome)));
}

namespace {

// The descriptor that came with a message of this kind, if one does.
Fd memory_of(const FromWorker& message, std::deque<Fd>& descriptors) {
  const auto* kept = std::get_if<ShardKept>(&message);
  const bool brings =
      std::holds_alternative<Join>(message) || (kept != nullptr && kept->error.empty());
  if (!brings || descriptors.empty()) return Fd();
  Fd memory = std::move(descriptors.front());
  descriptors.pop_front();
  return memory;
}

}  // namespace

bool WorkerSocket::take_frames(uint64_t serial, Connection& connection,
                               std::vector<WorkerNews>& news) {
  while (const std::optional<std::string_view> body = connection.reader.next()) {
    std::optional<FromWorker> message = parse_from_worker(*body);
    if (!message) {
      notice(connection, "sent a message that cannot be understood");
      return false;
    }
    if (!connection.rank) {
      if (!take_join(serial, connection, *message)) return false;
      Fd page = memory_of(*message, connection.descriptors);
      news.push_back({*connection.rank, std::move(*message), std::move(page)});
    } else if (std::visit(Stamp{attempt_, *connection.rank}, *message)) {
      Fd memory = memory_of(*message, connection.descriptors);
      news.push_back({*connection.rank, std::move(*message), std::move(memory)});
    } else {
      notice(connection, "joined twice");
      return false;
    }
  }
  if (connection.reader.broken()) notice(connection, "announced a message that is too long");
  return !connection.reader.broken();
}

std::vector<WorkerNews> WorkerSocket::receive(uint64_t serial) {
  std::vector<WorkerNews> news;
  const auto found = connections_.find(serial);
  if (found == connections_.end()) return news;
  bool more = false;
  const bool open = read_once(found->second, more);
  // Frames that came before an end of file count.
  if (!take_frames(serial, found->second, news) || !open) drop(serial);
  return news;
}

std::vector<WorkerNews> WorkerSocket::receive_last(uint32_t rank) {
  std::vector<WorkerNews> news;
  const auto seat = seats_.find(rank);
  const auto found =
      seat == seats_.end() ? connections_.end() : connections_.find(seat->second.serial);
  if (found == connections_.end()) return news;
  // A socket's buffers hold far less; a child of the worker that keeps writing is not followed.
  bool more = true, whole = true;
  for (int reads = 0; more && whole && reads < 64; ++reads) {
    read_once(found->second, more);
    whole = take_frames(found->first, found->second, news);
  }
  if (!whole) drop(found->first);
  return news;
}

bool WorkerSocket::send(Connection& connection, const std::string& frame) {
  connection.unsent += frame;
  return write_some(connection);
}

namespace {

// Sends what fits, and the descriptor, if there is one, beside its first byte.
ssize_t send_some(int socket, std::string_view bytes, Fd& beside) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (beside) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = beside.get();
    std::memcpy(CMSG_DATA(part), &number, sizeof number);
  }
  const ssize_t n = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n > 0) beside.reset();
  return n;
}

}  // namespace

bool WorkerSocket::write_some(Connection& connection) {
  size_t sent = 0;
  while (sent < connection.unsent.size()) {
    const std::string_view rest = std::string_view(connection.unsent).substr(sent);
    const ssize_t n = send_some(connection.socket.get(), rest, connection.beside);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    // The other end is closed: what it sent before is still to be read, and then says so.
    if (n < 0) sent = connection.unsent.size();
    if (n > 0) sent += static_cast<size_t>(n);
  }
  connection.unsent.erase(0, sent);
  if (connection.unsent.size() <= kMostUnsent) return true;
  notice(connection, "does not read what its agent sends");
  return false;
}

void WorkerSocket::send_all(const ToWorker& message) {
  const std::string frame = to_frame(message);
  std::vector<uint64_t> broken;
  for (auto& [serial, connection] : connections_) {
    if (connection.rank && !send(connection, frame)) broken.push_back(serial);
  }
  for (const uint64_t serial : broken) drop(serial);
}

void WorkerSocket::send_to(uint32_t rank, const ToWorker& message) {
  const auto seat = seats_.find(rank);
  if (seat == seats_.end()) return;
  const auto found = connections_.find(seat->second.serial);
  if (found == connections_.end()) return;
  if (!send(found->second, to_frame(message))) drop(found->first);
}

void WorkerSocket::flush(uint64_t serial) {
  const auto found = connections_.find(serial);
  if (found != connections_.end() && !write_some(found->second)) drop(serial);
}

void WorkerSocket::drop(uint64_t serial) {
  connections_.erase(serial);
}

void WorkerSocket::expire(Time now) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const bool late = !it->second.rank && it->second.join_before <= now;
    if (late) notice(it->second, "connected and did not join");
    it = late ? connections_.erase(it) : std::next(it);
  }
}

std::optional<Time> WorkerSocket::deadline() const {
  std::optional<Time> first;
  for (const auto& [serial, connection] : connections_) {
    if (!connection.rank) first = earlier(first, connection.join_before);
  }
  return first;
}

void WorkerSocket::watch(bool may_read) {
  listener_.watch({true, false});
  for (auto& [serial, connection] : connections_) {
    connection.socket.watch({may_read, !connection.unsent.empty()});
  }
}

void WorkerSocket::notice(const Connection& connection, const std::string& what) {
  if (notices_.size() >= kMostNotices) return;
  const std::string who =
      connection.rank ? "rank " + std::to_string(*connection.rank) : std::string("a process");
  notices_.push_back(who + " " + what + "; its connection to the agent was closed");
}

std::vector<std::string> WorkerSocket::take_notices() {
  return std::move(notices_);
}

}  // namespace hvd
