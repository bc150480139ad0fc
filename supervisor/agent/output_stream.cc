#include "supervisor/agent/output_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hvd {

namespace {
// A pipe as it is made. One that is full holds its writer up: it is worth a larger one.
constexpr size_t kPipe = 65536;
constexpr size_t kWidePipe = 4 * kPipe;
// The largest pipe an unprivileged worker can make of its standard output.
constexpr size_t kLargestPipe = 1u << 20;
}  // namespace

void OutputStream::grant(uint64_t bytes) {
  credit_ = bytes > UINT64_MAX - credit_ ? UINT64_MAX : credit_ + bytes;
  granted_ = bytes > UINT64_MAX - granted_ ? UINT64_MAX : granted_ + bytes;
  const uint64_t begin = sent_ - kept_.size();
  const uint64_t needless = granted_ - std::min<uint64_t>(granted_, kUnshown);
  if (needless > begin) kept_.drop(std::min<uint64_t>(needless - begin, kept_.size()));
}

void OutputStream::keep(const char* bytes, size_t count) {
  if (keeps_) kept_.append({bytes, count});
  sent_ += count;
}

// What was kept from there on is sent once more.
void OutputStream::go_on(const OutputPosition& position) {
  const uint64_t begin = sent_ - kept_.size();
  const uint64_t from = std::clamp(position.from, begin, sent_);
  held_.insert(0, kept_.view().substr(from - begin));
  std::string kept(kept_.view().substr(0, from - begin));
  kept_.clear();
  kept_.append(kept);
  // What it showed and did not note any more: its count goes on.
  sent_ = position.from < begin ? position.from : from;
  granted_ = std::min(position.granted, sent_);
  credit_ = window_ - std::min(window_, sent_ - granted_);
  done_ = paused_ = false;
  grant(0);
}

void OutputStream::forget() {
  kept_.clear();
  held_.clear();
  paused_ = false;
}

size_t OutputStream::read_pipe(char* to, size_t limit) {
  const ssize_t n = read(pipe_.get(), to, limit);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) {
    pipe_.close();
    return 0;
  }
  const auto bytes = static_cast<size_t>(n);
  taken_ += bytes;
  if (bytes >= kPipe) widen();
  if (identity_.stream == Stream::out) return bytes;
  const size_t kept = std::min(bytes, kTail);
  if (tail_.size() + kept > kTail) tail_.erase(0, tail_.size() + kept - kTail);
  tail_.append(to + bytes - kept, kept);
  return bytes;
}

// Fewer, larger pieces. Where the user's pipes hold too much already, it stays as it is.
void OutputStream::widen() {
  if (!wide_) fcntl(pipe_.get(), F_SETPIPE_SZ, kWidePipe);
  wide_ = true;
}

void OutputStream::send_held(LauncherLink& link) {
  size_t sent = 0;
  while (credit_ > 0 && sent < held_.size()) {
    const size_t piece = std::min({held_.size() - sent, kPipe, static_cast<size_t>(credit_)});
    std::memcpy(link.output_room(piece), held_.data() + sent, piece);
    link.send_output(identity_, piece);
    keep(held_.data() + sent, piece);
    sent += piece;
    credit_ -= piece;
  }
  held_.erase(0, sent);
}

void OutputStream::send_pipe(LauncherLink& link) {
  const auto most = static_cast<size_t>(std::min<uint64_t>(credit_, wide_ ? kWidePipe : kPipe));
  char* room = link.output_room(most);
  const size_t bytes = read_pipe(room, most);
  if (bytes > 0) keep(room, bytes);
  if (bytes > 0) link.send_output(identity_, bytes);
  credit_ -= bytes;
}

void OutputStream::pump(LauncherLink& link) {
  if (done_ || paused_) return;
  send_held(link);
  if (held_.empty() && credit_ > 0 && pipe_.valid()) send_pipe(link);
  if (held_.empty() && !pipe_.valid()) {
    link.send(identity_);
    done_ = true;
  }
}

void OutputStream::hold_rest() {
  char block[kPipe];
  while (pipe_.valid() && held_.size() < kLargestPipe) {
    const size_t bytes = read_pipe(block, sizeof block);
    if (bytes == 0) break;
    held_.append(block, bytes);
  }
}

void OutputStream::finish() {
  hold_rest();
  pipe_.close();
}

void take_up(OutputStream& stream, const TakeOutput& from) {
  const OutputEnd& of = stream.identity();
  for (const OutputPosition& one : from.streams) {
    if (one.attempt == of.attempt && one.rank == of.rank && one.stream == of.stream) {
      return stream.go_on(one);
    }
  }
  stream.forget();
}

void OutputStream::watch(bool may_read) {
  pipe_.watch({may_read && credit_ > 0 && held_.empty() && !paused_, false});
}

}  // namespace hvd
