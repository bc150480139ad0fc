// --detach: the launch goes on in the background, in a session of its own that no terminal hangs
// up, and whoever typed it is told once the ranks run or that they do not.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace hvd {

// Runs `launch` in a child; it is given what to call once all ranks were started. `output` is the
// file that takes the child's output and errors. Returns in the parent: 0 when the ranks run and
// `greeting` (given the child's pid) was printed, else the launch's exit code, after its words.
int run_detached(const std::string& output, const std::function<std::string(int pid)>& greeting,
                 const std::function<int(std::function<void()> started)>& launch);

}  // namespace hvd
