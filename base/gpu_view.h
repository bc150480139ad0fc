// Which GPUs a process sees. Pure but for visible_gpus, which looks at the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

// The entries of a value of CUDA_VISIBLE_DEVICES, indices or UUIDs (of MIG instances too), up to
// the first that names no device, as CUDA reads it; without a value the indices of `devices` GPUs.
std::vector<std::string> gpu_view(const std::optional<std::string>& visible, uint32_t devices);

// How many of `devices` GPUs this process sees.
uint32_t visible_gpus(uint32_t devices);

// "0,GPU-8f2c"
std::string joined_gpus(const std::vector<std::string>& view);

}  // namespace hvd
