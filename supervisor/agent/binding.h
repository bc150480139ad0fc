// --bind: which processors a rank may run on, from the machine's topology (hwloc).
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/message.h"

namespace hvd {

// Operating system's numbers of processors.
using Processors = std::vector<unsigned>;

// What this process may use, each in the order of the machine.
struct Topology {
  std::vector<Processors> cores;  // the hardware threads of each core
  std::vector<Processors> nodes;  // those of each NUMA node; at least one
};
Result<Topology> read_topology();

// The processors of one rank among `local_size` of this machine. Pure. core: an equal run of
// neighbouring cores, one shared with neighbours if there are fewer cores than ranks; numa: one
// node, ranks in equal runs over the nodes; none: empty, no restriction.
Processors processors_of(const Topology& topology, Binding binding, uint32_t local_rank,
                         uint32_t local_size);

}  // namespace hvd
