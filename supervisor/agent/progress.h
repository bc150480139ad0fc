// How far a worker says it is: by the page it shares with its agent, or by its notification socket.
#pragma once

#include <cstdint>

#include "base/fd.h"
#include "base/message.h"

namespace hvd {

class Progress {
 public:
  // Takes the memfd that came with Join. Anything but memory is refused: reading it could wait.
  bool attach(Fd page);
  // The worker said so on its notification socket.
  void told(uint64_t step) {
    if (step != step_) ++signs_;
    step_ = step;
  }

  // A sign of life without a step.
  void told() { ++signs_; }

  // Reads the page. A page too small counts as none.
  void refresh();
  // The step last reported either way; 0: none yet.
  uint64_t step() const { return step_; }
  // Grows with each sign of progress: steps, heartbeats, collectives, messages that say so.
  uint64_t signs() const { return signs_; }
  // Collectives it has begun.
  uint64_t begun() const { return counted_.begun; }
  // Nanoseconds spent in collectives, saves and loads.
  uint64_t in_calls_ns() const { return counted_.in_calls_ns; }
  // It saves or loads a checkpoint.
  bool on_storage() const { return counted_.storage != 0; }

 private:
  Fd page_;
  ProgressPage counted_;  // as last read
  uint64_t step_ = 0;
  uint64_t signs_ = 0;
};

}  // namespace hvd
