// epoll behind two calls. The owner of a loop keeps one Poller, names each descriptor by a number
// of its own, and handles what wait() returns one by one: there are no callbacks.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/time.h"

namespace hvd {

struct Interest {
  bool read = false;
  bool write = false;
  friend bool operator==(const Interest&, const Interest&) = default;
};

// Hang-ups and errors are told as both readable and writable: the next read or write says which.
struct Ready {
  uint64_t id = 0;
  bool read = false;
  bool write = false;
};

class Poller {
 public:
  Poller();

  // Watches `fd` for `interest` under the name `id`; without interest it is not watched. Cheap when
  // nothing changed. A descriptor must be forgotten before it is closed.
  void watch(int fd, uint64_t id, Interest interest);
  void forget(int fd);

  // Readable while something watched is ready: for a poller that is a part of another loop.
  int fd() const { return epoll_.get(); }

  // Waits until something is ready or `deadline` has passed.
  std::vector<Ready> wait(std::optional<Time> deadline);

 private:
  struct Watch {
    uint64_t id;
    Interest interest;
  };
  Fd epoll_;
  std::unordered_map<int, Watch> watched_;
};

}  // namespace hvd
