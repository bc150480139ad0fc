// The identity of the running program: launcher and agent compare it, and the pushed binary's file
// is named by it.
#pragma once

#include <string>

namespace hvd {

// Hex of the running program's GNU build id, from its notes in memory; empty if it was linked
// without one.
std::string own_build_id();

}  // namespace hvd
