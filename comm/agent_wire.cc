#include "comm/agent_wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr Duration kSendLimit = 10s;
constexpr Duration kRetry = 20ms;

// Waits until `fd` is ready for `events`; false at the deadline.
bool wait_fd(int fd, short events, std::optional<Time> deadline) {
  while (true) {
    pollfd item{fd, events, 0};
    const int n = poll(&item, 1, poll_timeout(deadline, now()));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
    if (deadline && now() >= *deadline) return false;
  }
}

// Sends what fits, with a descriptor beside the first byte if there is one.
ssize_t send_some(int fd, std::string_view bytes, int descriptor) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL);
}

// Receives what is there, and keeps a descriptor that comes along.
ssize_t receive_some(int fd, char* bytes, size_t size, Fd& descriptor) {
  iovec piece{bytes, size};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* header = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof received);
    descriptor.reset(received);
  }
  return n;
}

}  // namespace

Outcome AgentWire::join(const std::string& path, uint32_t attempt, uint32_t rank, int progress,
                        const WaitLimits& limits, std::unique_ptr<AgentWire>& wire) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return {HVD_INVALID_ARGUMENT, "HVD_AGENT_SOCKET is too long for a socket's path: " + path};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {HVD_SYSTEM_ERROR, errno_error("cannot make a socket", errno).text};
  Patience patience(limits, rank, "hvd_init");
  while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    if (errno != EAGAIN && errno != EINTR) {
      return {HVD_AGENT_LOST, errno_error("cannot reach the agent at " + path, errno).text};
    }
    // The agent's queue of callers is full; there is nothing to poll for.
    const Outcome patient = patience.check([] { return std::string("the agent to accept"); });
    if (!patient) return patient;
    poll(nullptr, 0, static_cast<int>(kRetry / 1ms));
  }
  wire.reset(new AgentWire(std::move(fd), attempt));
  return wire->send_bytes(to_frame(FromWorker(Join{kProtocol, attempt, rank})), progress);
}

Outcome AgentWire::send(const FromWorker& message) {
  return send_bytes(to_frame(message), -1);
}

Outcome AgentWire::send_aside(const FromWorker& message, int descriptor) {
  const std::string why = push(to_frame(message), descriptor);
  if (why.empty()) return {};
  return {HVD_AGENT_LOST, "the agent of this host is gone: " + why};
}

Outcome AgentWire::send_bytes(std::string_view bytes, int descriptor) {
  if (state_.code() == HVD_AGENT_LOST) return state_;
  const std::string why = push(bytes, descriptor);
  if (why.empty()) return {};
  lose(why);
  return state_;
}

// Empty, or why not all was taken.
std::string AgentWire::push(std::string_view bytes, int descriptor) {
  const std::lock_guard lock(sending_);
  const Time deadline = now() + kSendLimit;
  while (!bytes.empty()) {
    const ssize_t n = send_some(fd_.get(), bytes, descriptor);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
      descriptor = -1;
    } else if (errno == EAGAIN) {
      if (!wait_fd(fd_.get(), POLLOUT, deadline)) {
        return "it took no message for " + format_duration(kSendLimit);
      }
    } else if (errno != EINTR) {
      return std::strerror(errno);
    }
  }
  return "";
}

Outcome AgentWire::check() {
  if (state_) read_all();
  return state_;
}

void AgentWire::go_on_without() {
  goes_on_ = true;
  if (state_.code() == HVD_PEER_FAILED) state_ = {};
}

Outcome AgentWire::check_within(Duration grace) {
  const Time end = now() + grace;
  while (check() && now() < end) wait(end);
  return state_;
}

void AgentWire::wait(std::optional<Time> deadline) {
  wait_fd(fd_.get(), POLLIN, deadline);
}

void AgentWire::read_all() {
  char bytes[65536];
  while (state_) {
    const ssize_t n = receive_some(fd_.get(), bytes, sizeof bytes, descriptor_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return lose(n == 0 ? "it closed the connection" : std::strerror(errno));
    reader_.feed({bytes, static_cast<size_t>(n)});
    while (const auto body = reader_.next()) {
      std::optional<ToWorker> message = parse_to_worker(*body);
      if (!message) return lose("it sent a malformed message");
      sort_in(std::move(*message));
    }
    if (reader_.broken()) return lose("it sent a malformed message");
  }
}

void AgentWire::sort_in(ToWorker message) {
  const uint32_t attempt = std::visit([](const auto& m) { return m.attempt; }, message);
  if (attempt != attempt_) return;
  if (const auto* failed = std::get_if<PeerFailed>(&message)) {
    std::string text = "rank " + std::to_string(failed->rank) + " is gone";
    if (!failed->reason.empty()) text += ": " + failed->reason;
    if (state_ && !goes_on_) state_ = {HVD_PEER_FAILED, std::move(text)};
    return;
  }
  inbox_.push_back(std::move(message));
}

void AgentWire::lose(const std::string& why) {
  if (state_.code() == HVD_AGENT_LOST) return;
  state_ = {HVD_AGENT_LOST, "the agent of this host is gone: " + why};
}

}  // namespace hvd
