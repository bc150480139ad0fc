// One stream of one rank's output, on its way from the worker's pipe to the launcher against
// credit. It may outlive its attempt: what was in the pipe at the end is held here until the
// launcher grants credit for it. Where the job survives its launcher, what was sent is kept until
// credit for it comes back, and a little longer: the launcher gives credit for half a line that it
// holds, too, and has shown it only with the other half.
#pragma once

#include <cstdint>
#include <string>

#include "base/buffer.h"
#include "base/message.h"
#include "supervisor/agent/launcher_link.h"
#include "supervisor/agent/watched_fd.h"

namespace hvd {

class OutputStream {
 public:
  // How much of the end of standard error is kept for last_lines.
  static constexpr size_t kTail = 2048;
  // The longest half of a line that the launcher holds (kLongestLine of its line cutter).
  static constexpr size_t kUnshown = 64 << 10;

  // `pipe` is a non-blocking read end. Without one (Fd()) the stream is at its end.
  OutputStream(OutputEnd identity, WatchedFd pipe, uint64_t credit, bool keeps)
      : identity_(identity),
        pipe_(std::move(pipe)),
        window_(credit),
        credit_(credit),
        keeps_(keeps) {}

  const OutputEnd& identity() const { return identity_; }
  void grant(uint64_t bytes);

  // Another connection or launcher takes the output: nothing is sent until it says from where on.
  void pause() { paused_ = true; }
  void go_on(const OutputPosition& position);
  // It has all there was.
  void forget();

  // Sends what is held, then what one read of the pipe gives, within the credit; and OutputEnd
  // when that was all.
  void pump(LauncherLink& link);
  // Takes what is in the pipe now, beyond all credit, to hold it: bounded by a pipe's size.
  void hold_rest();
  // hold_rest, and the pipe is closed: whoever still has its other end is not heard any more.
  void finish();
  // Tells the poller whether the pipe is of interest: not without credit, nor while `may_read` is
  // false.
  void watch(bool may_read);

  // Bytes that wait for credit, and that are kept.
  size_t held() const { return held_.size() + kept_.size(); }
  // Bytes that came out of the pipe so far.
  uint64_t taken() const { return taken_; }
  // OutputEnd was sent.
  bool done() const { return done_; }
  // And nothing of it may be asked for again.
  bool over() const { return done_ && (!keeps_ || granted_ >= sent_); }
  // The last kTail bytes of standard error read so far.
  const std::string& tail() const { return tail_; }

 private:
  // Reads at most `limit` bytes of the pipe to `to`; closes the pipe at its end.
  size_t read_pipe(char* to, size_t limit);
  void keep(const char* bytes, size_t count);
  void send_held(LauncherLink& link);
  void send_pipe(LauncherLink& link);
  void widen();

  OutputEnd identity_;
  WatchedFd pipe_;
  uint64_t window_;  // credit it began with
  uint64_t credit_;
  bool keeps_;
  bool paused_ = false;
  uint64_t sent_ = 0, granted_ = 0;  // bytes; granted: beside the window
  Buffer kept_;                      // the last of those that were sent
  std::string held_;
  std::string tail_;
  uint64_t taken_ = 0;
  bool wide_ = false;
  bool done_ = false;
};

// As the launcher says.
void take_up(OutputStream& stream, const TakeOutput& from);

}  // namespace hvd
