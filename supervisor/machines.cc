#include "supervisor/machines.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/gpu_view.h"
#include "base/variables.h"

namespace hvd {

namespace {

std::string counted(uint32_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// "h1, h2 and h3", or "h1, h2, h3 and 197 more".
std::string enumeration(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  const size_t shown = names.size() > kShown ? kShown - 1 : names.size() - 1;
  std::string text;
  for (size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text + " and " +
         (names.size() > kShown ? std::to_string(names.size() - shown) + " more" : names.back());
}

}  // namespace

std::optional<uint32_t> declared_gpus(const Job& job, const Host& host) {
  const std::string* visible = find_variable(job.set, "CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) visible = find_variable(host.env, "CUDA_VISIBLE_DEVICES");
  if (visible != nullptr) return static_cast<uint32_t>(gpu_view(*visible, 0).size());
  if (!host.gpus.empty()) return static_cast<uint32_t>(host.gpus.size());
  return std::nullopt;
}

uint32_t gpus_of(const Job& job, const KnownMachine& machine) {
  return declared_gpus(job, job.hosts[machine.host]).value_or(machine.hello.gpus);
}

std::string gpu_shortage(const Job& job, const KnownMachine& machine, uint32_t ranks) {
  const std::string& name = job.hosts[machine.host].name;
  const uint32_t gpus = gpus_of(job, machine);
  if (job.gpus_per_rank) {
    const uint64_t needed = uint64_t{*job.gpus_per_rank} * ranks;
    if (needed <= gpus) return "";
    return name + ": " + counted(ranks, "rank") + " with " + counted(*job.gpus_per_rank, "GPU") +
           " each do not fit its " + counted(gpus, "GPU");
  }
  if (gpus == 0 || ranks <= gpus || job.oversubscribe) return "";
  return name + ": " + counted(ranks, "slot") + ", " + counted(gpus, "GPU") +
         ": two ranks would share one; --gpus-per-rank 0 hides the GPUs from the ranks, "
         "--oversubscribe lets them share";
}

std::string gpu_shortages(const Job& job, const std::vector<KnownMachine>& machines,
                          const Placement& placement) {
  std::string shortages;
  for (const HostPlaces& places : placement) {
    const auto known = std::find_if(machines.begin(), machines.end(),
                                    [&](const KnownMachine& m) { return m.host == places.host; });
    if (known == machines.end() && !declared_gpus(job, job.hosts[places.host])) continue;
    const std::string shortage =
        gpu_shortage(job, known == machines.end() ? KnownMachine{places.host, {}} : *known,
                     static_cast<uint32_t>(places.places.size()));
    if (!shortage.empty()) shortages += (shortages.empty() ? "" : "\n") + shortage;
  }
  return shortages;
}

bool same_machine(const AgentHello& a, const AgentHello& b) {
  return !a.boot_id.empty() && a.network != 0 && a.boot_id == b.boot_id && a.network == b.network;
}

std::vector<std::string> shared_machines(const Job& job,
                                         const std::vector<KnownMachine>& machines) {
  std::map<std::pair<std::string, uint64_t>, std::vector<std::string>> names;
  for (const KnownMachine& machine : machines) {
    if (!same_machine(machine.hello, machine.hello)) continue;  // what could not be read
    names[{machine.hello.boot_id, machine.hello.network}].push_back(job.hosts[machine.host].name);
  }
  std::vector<std::string> sentences;
  for (const auto& [identity, hosts] : names) {
    if (hosts.size() < 2) continue;
    sentences.push_back(enumeration(hosts) +
                        " are one machine: their ranks share its cores and GPUs");
  }
  std::sort(sentences.begin(), sentences.end());
  return sentences;
}

std::string thread_shares(const Job& job, const std::vector<KnownMachine>& machines,
                          const Placement& placement) {
  const std::string name = "OMP_NUM_THREADS";
  if (find_variable(job.set, name) || find_variable(job.forwarded, name)) return "";
  std::map<uint32_t, const AgentHello*> hellos;
  for (const KnownMachine& machine : machines) hellos[machine.host] = &machine.hello;
  std::map<std::pair<std::string, uint64_t>, uint32_t> ranks_of_machine;
  for (const HostPlaces& places : placement) {
    const auto hello = hellos.find(places.host);
    if (hello == hellos.end()) continue;
    ranks_of_machine[{hello->second->boot_id, hello->second->network}] +=
        static_cast<uint32_t>(places.places.size());
  }
  std::map<uint32_t, std::string> hosts_by_share;
  for (const HostPlaces& places : placement) {
    const auto hello = hellos.find(places.host);
    const Host& host = job.hosts[places.host];
    if (hello == hellos.end() || find_variable(host.env, name)) continue;
    const AgentHello& told = *hello->second;
    const uint32_t ranks = same_machine(told, told) ? ranks_of_machine[{told.boot_id, told.network}]
                                                    : static_cast<uint32_t>(places.places.size());
    std::string& hosts = hosts_by_share[std::max(1u, told.cores / ranks)];
    hosts += (hosts.empty() ? "" : ", ") + host.name;
  }
  std::string text;
  for (const auto& [share, hosts] : hosts_by_share) {
    text += (text.empty() ? "" : "; ") + std::to_string(share) + " on " + hosts;
  }
  return text;
}

}  // namespace hvd
