// What the agents told about their machines, held against what the job asks of them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/message.h"
#include "supervisor/job.h"
#include "supervisor/placement.h"

namespace hvd {

// A host whose agent answered.
struct KnownMachine {
  uint32_t host = 0;  // index into the job's hosts
  AgentHello hello;
};

// How many GPUs the ranks of this host see: a CUDA_VISIBLE_DEVICES that the user set, else its
// `gpus`; nothing where only the host itself can tell.
std::optional<uint32_t> declared_gpus(const Job& job, const Host& host);
// The same, or else what a login there sees.
uint32_t gpus_of(const Job& job, const KnownMachine& machine);

// Why `ranks` ranks cannot have the GPUs they need there, as a sentence; empty if they can. A host
// without GPUs is asked for none, unless gpus_per_rank says so.
std::string gpu_shortage(const Job& job, const KnownMachine& machine, uint32_t ranks);

// The shortages of a plan, a line each, as far as the machines are known or their GPUs declared.
std::string gpu_shortages(const Job& job, const std::vector<KnownMachine>& machines,
                          const Placement& placement);

// Boot id and network namespace are known and equal.
bool same_machine(const AgentHello& a, const AgentHello& b);

// Hosts that are one machine under two names, a sentence for each machine.
std::vector<std::string> shared_machines(const Job& job, const std::vector<KnownMachine>& machines);

// What OMP_NUM_THREADS the ranks get where nobody set it: "1 on h1, 4 on h2"; empty if it is set.
std::string thread_shares(const Job& job, const std::vector<KnownMachine>& machines,
                          const Placement& placement);

}  // namespace hvd
