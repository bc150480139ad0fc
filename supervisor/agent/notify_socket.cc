#include "supervisor/agent/notify_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "supervisor/agent/unix_socket.h"

namespace hvd {

namespace {

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

Notification parse_notification(std::string_view datagram) {
  Notification notification;
  while (!datagram.empty()) {
    const size_t end = datagram.find('\n');
    const std::string_view line = datagram.substr(0, end);
    datagram.remove_prefix(end == std::string_view::npos ? datagram.size() : end + 1);
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = line.substr(0, equals), value = line.substr(equals + 1);
    if (key == "X_HVD_STEP") {
      if (const auto step = parse_number(value)) notification.step = step;
    } else if (key == "X_HVD_CHECKPOINT") {
      notification.checkpoint = value;
    } else if (key == "WATCHDOG") {
      notification.alive = notification.alive || value == "1";
    } else if (key == "EXTEND_TIMEOUT_USEC") {
      if (const auto extension = parse_number(value)) notification.extend_us = extension;
    }
  }
  return notification;
}

Result<NotifySocket> NotifySocket::open(Poller& poller, uint64_t name, const std::string& path) {
  Result<Fd> socket = bind_unix_socket(path, SOCK_DGRAM);
  if (!socket) return socket.error();
  return NotifySocket(WatchedFd(poller, std::move(*socket), name), path);
}

std::vector<Notification> NotifySocket::receive() {
  constexpr int kAtOnce = 64;
  std::vector<Notification> notifications;
  char datagram[8192];
  for (int i = 0; i < kAtOnce; ++i) {
    const ssize_t n = recv(socket_.get(), datagram, sizeof datagram, MSG_DONTWAIT);
    if (n < 0) break;
    notifications.push_back(parse_notification({datagram, static_cast<size_t>(n)}));
  }
  return notifications;
}

}  // namespace hvd
