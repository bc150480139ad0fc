#include "supervisor/agent/complain.h"

#include <poll.h>
#include <unistd.h>

#include "base/fd.h"
#include "supervisor/agent/facts.h"

namespace hvd {

void complain(const std::string& text) {
  const std::string line = "hvdlaunch agent on " + own_hostname() + ": " + text + "\n";
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  // A pipe said to be writable takes at least PIPE_BUF bytes at once.
  constexpr size_t kAtOnce = 4096;
  if (poll(&out, 1, 100) == 1 && (out.revents & POLLOUT) != 0) {
    static_cast<void>(write_all(STDERR_FILENO, std::string_view(line).substr(0, kAtOnce)));
  }
}

}  // namespace hvd
