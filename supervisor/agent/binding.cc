#include "supervisor/agent/binding.h"

#include <hwloc.h>

#include <algorithm>
#include <memory>

namespace hvd {

namespace {

struct EndTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using OwnedTopology = std::unique_ptr<hwloc_topology, EndTopology>;

Processors processors_in(hwloc_const_cpuset_t set) {
  Processors processors;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) {
    processors.push_back(static_cast<unsigned>(i));
  }
  return processors;
}

std::vector<Processors> objects(hwloc_topology_t topology, hwloc_obj_type_t type) {
  std::vector<Processors> found;
  for (hwloc_obj_t object = hwloc_get_next_obj_by_type(topology, type, nullptr); object != nullptr;
       object = hwloc_get_next_obj_by_type(topology, type, object)) {
    // A node that has memory only holds no rank.
    if (hwloc_bitmap_iszero(object->cpuset)) continue;
    found.push_back(processors_in(object->cpuset));
  }
  return found;
}

}  // namespace

Result<Topology> read_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return Error{"hwloc cannot be used"};
  const OwnedTopology topology(raw);
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
  if (hwloc_topology_load(raw) != 0) return Error{"the machine's topology cannot be read"};
  Topology read;
  read.cores = objects(raw, HWLOC_OBJ_CORE);
  // Some virtual machines tell of processors and not of cores.
  if (read.cores.empty()) read.cores = objects(raw, HWLOC_OBJ_PU);
  read.nodes = objects(raw, HWLOC_OBJ_NUMANODE);
  if (read.cores.empty()) return Error{"the machine's topology names no core"};
  if (read.nodes.empty()) {
    read.nodes.push_back(processors_in(hwloc_topology_get_topology_cpuset(raw)));
  }
  return read;
}

Processors processors_of(const Topology& topology, Binding binding, uint32_t local_rank,
                         uint32_t local_size) {
  if (binding == Binding::none) return {};
  const std::vector<Processors>& units = binding == Binding::core ? topology.cores : topology.nodes;
  const size_t first = local_rank * units.size() / local_size;
  const size_t last = binding == Binding::core
                          ? std::max(first + 1, (local_rank + 1) * units.size() / local_size)
                          : first + 1;
  Processors processors;
  for (size_t unit = first; unit < last; ++unit) {
    processors.insert(processors.end(), units[unit].begin(), units[unit].end());
  }
  return processors;
}

}  // namespace hvd
