// Opening on network disks, where another host may just have replaced what is opened: the handle
// that this host kept is stale then (ESTALE), and the next try looks the name up anew.
#pragma once

#include <cerrno>

#include "base/fd.h"

namespace hvd {

// `open` gives a descriptor, or -1 and errno.
template <class Open>
Fd open_anew(Open open) {
  constexpr int kTries = 3;
  for (int tried = 1;; ++tried) {
    Fd fd(open());
    if (fd || errno != ESTALE || tried == kTries) return fd;
  }
}

}  // namespace hvd
