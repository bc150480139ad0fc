#include "base/variables.h"

#include <algorithm>
#include <iterator>

namespace hvd {

namespace {

// Of the far login.
constexpr std::string_view kIdentity[] = {"HOME",   "USER", "LOGNAME", "SHELL",
                                          "TMPDIR", "MAIL", "PWD",     "OLDPWD"};

// Bound to this host, this login or this desktop.
constexpr std::string_view kBound[] = {"DISPLAY",        "WAYLAND_DISPLAY", "XAUTHORITY",
                                       "KRB5CCNAME",     "HOSTNAME",        "INVOCATION_ID",
                                       "JOURNAL_STREAM", "MANAGERPID",      "NOTIFY_SOCKET",
                                       "WATCHDOG_USEC",  "WATCHDOG_PID",    "CUDA_VISIBLE_DEVICES"};

// Made anew for every rank; a stale one of an outer launcher must not be believed.
constexpr std::string_view kRank[] = {"RANK",
                                      "LOCAL_RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_WORLD_SIZE",
                                      "GROUP_RANK",
                                      "GROUP_WORLD_SIZE",
                                      "ROLE_RANK",
                                      "ROLE_NAME",
                                      "ROLE_WORLD_SIZE",
                                      "LOCAL_SIZE",
                                      "CROSS_RANK",
                                      "CROSS_SIZE",
                                      "NODE_RANK",
                                      "TF_CONFIG",
                                      "SLURM_PROCID",
                                      "SLURM_LOCALID",
                                      "SLURM_NODEID",
                                      "SLURM_NPROCS",
                                      "SLURM_LAUNCH_NODE_IPADDR",
                                      "SLURM_GTIDS",
                                      "SLURM_TASK_PID",
                                      "SLURMD_NODENAME",
                                      "SLURM_MPI_TYPE",
                                      "SLURM_DISTRIBUTION"};

constexpr std::string_view kPrefixes[] = {"XDG_",
                                          "SSH_",
                                          "DBUS_",
                                          "LISTEN_",
                                          "MASTER_",
                                          "TORCHELASTIC_",
                                          "PMI",
                                          "OMPI_",
                                          "PRTE_",
                                          "ORTE_",
                                          "HYDI_",
                                          "MPIEXEC_",
                                          "MPI_LOCAL",
                                          "MV2_COMM_WORLD_",
                                          "HOROVOD_",
                                          "HVD_",
                                          "SLURM_STEP",
                                          "SLURM_SRUN_",
                                          "SLURM_NTASKS",
                                          "SLURM_PMI",
                                          "SLURM_CPU_BIND",
                                          "SLURM_MEM_BIND",
                                          "SLURM_TOPOLOGY_",
                                          "SRUN_"};

template <class Names>
bool is_one_of(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

bool travels(std::string_view name) {
  if (is_one_of(kIdentity, name) || is_one_of(kBound, name) || is_one_of(kRank, name)) return false;
  return std::none_of(std::begin(kPrefixes), std::end(kPrefixes),
                      [name](std::string_view prefix) { return name.starts_with(prefix); });
}

const std::string* find_variable(const Variables& variables, std::string_view name) {
  const auto found = std::find_if(variables.rbegin(), variables.rend(),
                                  [name](const auto& variable) { return variable.first == name; });
  return found == variables.rend() ? nullptr : &found->second;
}

Variables forwarded(const Variables& environment) {
  Variables kept;
  for (const auto& variable : environment) {
    if (travels(variable.first)) kept.push_back(variable);
  }
  return kept;
}

}  // namespace hvd
