#include "supervisor/agent/input_stream.h"

#include <unistd.h>

#include <cerrno>

namespace hvd {

void InputStream::feed(std::string_view bytes, bool last) {
  if (!pipe_.valid()) return;
  waiting_.append(bytes);
  last_ = last_ || last;
}

uint64_t InputStream::pump() {
  uint64_t taken = 0;
  while (pipe_.valid() && !waiting_.empty()) {
    const ssize_t n = write(pipe_.get(), waiting_.view().data(), waiting_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return taken;
    if (n < 0) {
      waiting_.clear();
      pipe_.close();
      return taken;
    }
    waiting_.drop(static_cast<size_t>(n));
    taken += static_cast<uint64_t>(n);
  }
  if (last_) pipe_.close();
  return taken;
}

}  // namespace hvd
