// An allocation of Slurm: its hosts, as the variables of the job tell them, and the command that
// starts a program on one of them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/message.h"
#include "supervisor/host.h"

namespace hvd {

// Host::source of an allocation's hosts.
inline constexpr const char* kAllocationSource = "SLURM_JOB_NODELIST";

// The number of the job whose allocation this is; empty outside of one.
Result<std::string> slurm_job(const Variables& environment);

// The hosts of the allocation, in Slurm's order. Slots: the tasks of each where tasks were asked
// for; else GPUs; else CPUs, by the CPUs of a task if those were asked for. In a step tasks do not
// count: they are the step's. The error names the variable, or says that there are several of us.
Result<std::vector<Host>> slurm_hosts(const Variables& environment);

// "4(x2),3" -> 4 4 3, for as many nodes as there are; more counts than nodes are no error.
Result<std::vector<uint32_t>> parse_slurm_counts(std::string_view text, size_t nodes);

// The words before those of the program: srun of one task beside whatever else runs there, whose
// stdin and stdout are the program's, byte for byte and at once.
std::vector<std::string> srun_argv(const std::string& job, const Host& host);

// Whether srun may see this variable of ours. Most of Slurm's are options to it, set for the steps
// of a user, or for the step that we run in.
bool srun_sees(std::string_view variable);

}  // namespace hvd
