// What the agent tells about its host.
#pragma once

#include <cstdint>
#include <string>

namespace hvd {

struct HostFacts {
  std::string hostname;
  std::string boot_id;   // changes with every boot of the machine
  uint64_t network = 0;  // inode of the network namespace
  uint32_t cores = 1;    // that this process may run on
  uint32_t devices = 0;  // NVIDIA devices with a device file
  uint32_t gpus = 0;     // those that CUDA_VISIBLE_DEVICES of this process leaves
};

std::string own_hostname();
HostFacts read_facts();

}  // namespace hvd
