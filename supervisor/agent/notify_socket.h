// A worker's NOTIFY_SOCKET: datagrams of KEY=VALUE lines, as sd_notify(3) sends them.
//
// Read here: X_HVD_STEP=n, X_HVD_CHECKPOINT=path, WATCHDOG=1, EXTEND_TIMEOUT_USEC=n. READY, STATUS
// and all other keys are taken and mean nothing to the launcher yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "supervisor/agent/watched_fd.h"

namespace hvd {

struct Notification {
  std::optional<uint64_t> step;
  std::string checkpoint;  // empty: none
  bool alive = false;      // WATCHDOG=1
  std::optional<uint64_t> extend_us;
};

// Pure. Of a key that comes twice the last one counts.
Notification parse_notification(std::string_view datagram);

class NotifySocket {
 public:
  static Result<NotifySocket> open(Poller& poller, uint64_t name, const std::string& path);

  const std::string& path() const { return path_; }
  // What arrived, at most 64 datagrams a call, each of at most 8 KiB.
  std::vector<Notification> receive();
  void watch(bool may_read) { socket_.watch({may_read, false}); }

 private:
  NotifySocket(WatchedFd socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}

  WatchedFd socket_;
  std::string path_;
};

}  // namespace hvd
