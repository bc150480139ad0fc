#include "supervisor/agent/job_name.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/time.h"

namespace hvd {

namespace {

using namespace std::chrono_literals;

// How long a second agent waits for the first one's tree to be dead, and how often it looks.
constexpr Duration kLockWait = 60s;
constexpr int kLockPollMs = 5;

AbstractName abstract_name(const std::string& name) {
  AbstractName result;
  result.address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof result.address.sun_path - 1);
  HVD_CHECK(length == name.size());
  std::memcpy(result.address.sun_path + 1, name.data(), length);
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return result;
}

bool launcher_hung_up(int wait_ms) {
  pollfd in{STDIN_FILENO, 0, 0};
  return poll(&in, 1, wait_ms) == 1 && (in.revents & (POLLHUP | POLLERR)) != 0;
}

}  // namespace

AbstractName door_name(const std::string& job, uint32_t host) {
  return abstract_name("hvdlaunch-" + job + "-" + std::to_string(host) + "-door");
}

Result<Fd> take_agent_lock(const std::string& job, uint32_t host) {
  const std::string text = "hvdlaunch-" + job + "-" + std::to_string(host);
  const AbstractName name = abstract_name(text);
  Fd lock(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!lock) return errno_error("cannot make a socket", errno);
  const Time deadline = now() + kLockWait;
  while (bind(lock.get(), name.get(), name.length) != 0) {
    if (errno != EADDRINUSE) return errno_error("cannot take the lock " + text, errno);
    if (now() >= deadline) {
      return Error{"another agent of job " + job + " still runs here after " +
                   format_duration(kLockWait)};
    }
    if (launcher_hung_up(kLockPollMs)) {
      return Error{"the launcher hung up while an earlier agent of job " + job + " still ran here"};
    }
  }
  return lock;
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

}  // namespace hvd
