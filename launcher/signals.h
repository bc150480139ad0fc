// The signals that a launch listens to, as a descriptor for its loop: INT, TERM, HUP, USR1 and
// TSTP. A HUP or TSTP that was ignored when the program started (nohup, a shell without job
// control) stays ignored. PIPE is ignored: writes say so.
#pragma once

#include <vector>

#include "base/fd.h"

namespace hvd {

class Signals {
 public:
  // Blocks them in the calling thread, which must be the only one.
  Signals();

  int fd() const { return fd_.get(); }
  // Those that came since the last call.
  std::vector<int> take();

  // Stops this process as TSTP stops any other, and returns when it was continued: at once where
  // nobody could continue it.
  static void stop_here();

 private:
  Fd fd_;
};

}  // namespace hvd
