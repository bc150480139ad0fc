#include "supervisor/agent/output_stream.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hvd {

namespace {
constexpr size_t kAtOnce = 65536;
// The largest pipe an unprivileged worker can make of its standard output.
constexpr size_t kLargestPipe = 1u << 20;
}  // namespace

void OutputStream::grant(uint64_t bytes) {
  credit_ = bytes > UINT64_MAX - credit_ ? UINT64_MAX : credit_ + bytes;
}

size_t OutputStream::read_pipe(size_t limit) {
  char block[kAtOnce];
  const ssize_t n = read(pipe_.get(), block, std::min(limit, sizeof block));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) {
    pipe_.close();
    return 0;
  }
  const auto bytes = static_cast<size_t>(n);
  held_.append(block, bytes);
  tail_.append(block, bytes);
  if (tail_.size() > kTail) tail_.erase(0, tail_.size() - kTail);
  return bytes;
}

void OutputStream::send_held(LauncherLink& link) {
  size_t sent = 0;
  while (credit_ > 0 && sent < held_.size()) {
    const size_t piece = std::min({held_.size() - sent, kAtOnce, static_cast<size_t>(credit_)});
    link.send(
        Output{identity_.attempt, identity_.rank, identity_.stream, held_.substr(sent, piece)});
    sent += piece;
    credit_ -= piece;
  }
  held_.erase(0, sent);
}

void OutputStream::pump(LauncherLink& link) {
  if (done_) return;
  send_held(link);
  if (held_.empty() && credit_ > 0 && pipe_.valid()) {
    read_pipe(static_cast<size_t>(std::min<uint64_t>(credit_, kAtOnce)));
    send_held(link);
  }
  if (held_.empty() && !pipe_.valid()) {
    link.send(identity_);
    done_ = true;
  }
}

void OutputStream::hold_rest() {
  while (pipe_.valid() && held_.size() < kLargestPipe && read_pipe(kAtOnce) > 0) {
  }
}

void OutputStream::finish() {
  hold_rest();
  pipe_.close();
}

void OutputStream::watch(bool may_read) {
  pipe_.watch({may_read && credit_ > 0 && held_.empty(), false});
}

}  // namespace hvd
