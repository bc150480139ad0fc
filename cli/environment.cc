#include "cli/environment.h"

#include <algorithm>
#include <array>

namespace hvd {

namespace {

// Of the far login.
constexpr std::array<std::string_view, 8> kIdentity = {"HOME",   "USER", "LOGNAME", "SHELL",
                                                       "TMPDIR", "MAIL", "PWD",     "OLDPWD"};

// Bound to this host, this login or this desktop.
constexpr std::array<std::string_view, 11> kBound = {
    "DISPLAY",       "WAYLAND_DISPLAY", "XAUTHORITY",          "KRB5CCNAME",
    "HOSTNAME",      "INVOCATION_ID",   "JOURNAL_STREAM",      "NOTIFY_SOCKET",
    "WATCHDOG_USEC", "WATCHDOG_PID",    "CUDA_VISIBLE_DEVICES"};

// Made anew for every rank; a stale one of an outer launcher must not be believed.
constexpr std::array<std::string_view, 14> kFamilyNames = {"RANK",
                                                           "LOCAL_RANK",
                                                           "WORLD_SIZE",
                                                           "LOCAL_WORLD_SIZE",
                                                           "GROUP_RANK",
                                                           "GROUP_WORLD_SIZE",
                                                           "ROLE_RANK",
                                                           "ROLE_NAME",
                                                           "ROLE_WORLD_SIZE",
                                                           "TF_CONFIG",
                                                           "LOCAL_SIZE",
                                                           "CROSS_RANK",
                                                           "CROSS_SIZE",
                                                           "NODE_RANK"};

constexpr std::array<std::string_view, 10> kSlurmStep = {"SLURM_PROCID",
                                                         "SLURM_LOCALID",
                                                         "SLURM_NODEID",
                                                         "SLURM_NPROCS",
                                                         "SLURM_LAUNCH_NODE_IPADDR",
                                                         "SLURM_GTIDS",
                                                         "SLURM_TASK_PID",
                                                         "SLURM_CPU_BIND",
                                                         "SLURMD_NODENAME",
                                                         "SLURM_MPI_TYPE"};

constexpr std::array<std::string_view, 17> kPrefixes = {
    "XDG_", "SSH_",     "DBUS_",    "LISTEN_",    "MASTER_",    "TORCHELASTIC_",
    "PMI",  "OMPI_",    "PRTE_",    "ORTE_",      "HYD",        "MPI_LOCAL",
    "HVD_", "MPIEXEC_", "HOROVOD_", "SLURM_STEP", "SLURM_SRUN_"};

template <class Names>
bool is_one_of(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool travels(std::string_view name) {
  if (is_one_of(kIdentity, name) || is_one_of(kBound, name) || is_one_of(kFamilyNames, name) ||
      is_one_of(kSlurmStep, name)) {
    return false;
  }
  if (name.starts_with("SLURM_NTASKS")) return false;
  return std::none_of(kPrefixes.begin(), kPrefixes.end(),
                      [name](std::string_view prefix) { return name.starts_with(prefix); });
}

Variables forwarded(const Variables& environment) {
  Variables kept;
  for (const auto& variable : environment) {
    if (travels(variable.first)) kept.push_back(variable);
  }
  return kept;
}

}  // namespace hvd
