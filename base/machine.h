// What this machine offers a job.
#pragma once

#include <cstdint>

namespace hvd {

// Cores that this process may use, at least 1.
uint32_t count_cores();

// GPUs by their device files, /dev/nvidia0, nvidia1, ...
uint32_t count_gpus();

}  // namespace hvd
