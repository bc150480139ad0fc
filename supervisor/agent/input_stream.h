// Standard input of the one rank that was given the launcher's, on its way from the launcher to
// that worker's pipe. What the pipe does not take waits here; the launcher sends no more than
// kInputWindow beyond what was taken. A worker that closed its end drops the rest.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/buffer.h"
#include "supervisor/agent/watched_fd.h"

namespace hvd {

class InputStream {
 public:
  // `pipe` is a non-blocking write end.
  explicit InputStream(WatchedFd pipe) : pipe_(std::move(pipe)) {}

  // With `last` the pipe closes behind these bytes.
  void feed(std::string_view bytes, bool last);
  // Writes what the pipe takes now; returns how much that was.
  uint64_t pump();
  void watch() { pipe_.watch({false, !waiting_.empty()}); }

 private:
  WatchedFd pipe_;
  Buffer waiting_;
  bool last_ = false;
};

}  // namespace hvd
