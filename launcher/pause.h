// How long to wait before a host is tried again.
#pragma once

#include "base/time.h"

namespace hvd {

// After so many tries that failed: 0.1 s at first, doubling to 3 s, each spread by a half up and
// down, so that many hosts behind one sshd do not come back together.
Duration pause_before_try(int tries);

// Until when a name that does not exist is asked for again: where hosts are being set up, names
// come after the launcher, but a mistyped one need not hold everything up to the deadline. A sixth
// of the time.
Time end_of_patience(Time started, Time deadline);

}  // namespace hvd
