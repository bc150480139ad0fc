// How far a worker says it is: by the page it shares with its agent, or by X_HVD_STEP.
#pragma once

#include <cstdint>

#include "base/fd.h"

namespace hvd {

class Progress {
 public:
  // Takes the memfd that came with Join. Anything but memory is refused: reading it could wait.
  bool attach(Fd page);
  // The worker said so on its notification socket.
  void told(uint64_t step) { step_ = step; }

  // Reads the page. A page too small counts as none.
  void refresh();
  // The step last reported either way; 0: none yet.
  uint64_t step() const { return step_; }

 private:
  Fd page_;
  uint64_t page_step_ = 0;
  uint64_t step_ = 0;
};

}  // namespace hvd
