#include "launcher/slurm.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>

#include "base/variables.h"
#include "launcher/host_spec.h"

namespace hvd {

namespace {

// What is empty is not set.
const std::string* find(const Variables& environment, std::string_view name) {
  const std::string* value = find_variable(environment, name);
  return value == nullptr || value->empty() ? nullptr : value;
}

// The older name holds for a step too, and is for Slurm's that lack the newer one.
const std::string* find_nodes(const Variables& environment) {
  const std::string* nodes = find(environment, "SLURM_JOB_NODELIST");
  return nodes != nullptr ? nodes : find(environment, "SLURM_NODELIST");
}

Error wrong(std::string_view name, const std::string& value, const std::string& expected) {
  return Error{std::string(name) + " is " + in_quotes(value) + ": expected " + expected};
}

Result<std::vector<std::string>> names_of(const std::string& list) {
  std::vector<std::string> names;
  for (const std::string_view item : split_host_list(list)) {
    const auto more = expand_ranges(item);
    if (!more) return Error{std::string(kAllocationSource) + ": " + more.error().text};
    for (const std::string& name : *more) {
      if (const Status status = check_host_name(name); !status) {
        return Error{std::string(kAllocationSource) + ": " + status.error().text};
      }
      names.push_back(name);
    }
    if (names.size() > kMostHosts) {
      return Error{std::string(kAllocationSource) + " names more than " +
                   std::to_string(kMostHosts) + " hosts"};
    }
  }
  return names;
}

Result<std::vector<uint32_t>> counts_of(const Variables& environment, std::string_view name,
                                        size_t nodes) {
  const std::string* text = find(environment, name);
  if (text == nullptr) return std::vector<uint32_t>();
  auto counts = parse_slurm_counts(*text, nodes);
  if (!counts) return wrong(name, *text, counts.error().text);
  return counts;
}

// "4", "a100:4" or "a100:2,h100:2".
std::optional<uint32_t> parse_gpus(std::string_view text) {
  uint64_t sum = 0;
  for (const std::string_view part : split_host_list(text)) {
    const auto count = parse_count(part.substr(part.rfind(':') + 1), 0, kMostSlots);
    if (!count) return std::nullopt;
    sum += *count;
  }
  if (sum > kMostSlots) return std::nullopt;
  return static_cast<uint32_t>(sum);
}

Result<uint32_t> gpus_of(const Variables& environment) {
  for (const char* name : {"SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"}) {
    const std::string* text = find(environment, name);
    if (text == nullptr) continue;
    const auto gpus = parse_gpus(*text);
    if (!gpus) return wrong(name, *text, "a number of GPUs such as 4 or a100:4");
    return *gpus;
  }
  return 0u;
}

Result<std::vector<uint32_t>> cpu_slots(const Variables& environment, size_t nodes) {
  auto slots = counts_of(environment, "SLURM_JOB_CPUS_PER_NODE", nodes);
  const std::string* text = find(environment, "SLURM_CPUS_PER_TASK");
  if (!slots || text == nullptr) return slots;
  const auto per_task = parse_count(*text, 1, kMostSlots);
  if (!per_task) return wrong("SLURM_CPUS_PER_TASK", *text, "a number of CPUs");
  for (uint32_t& count : *slots) count = std::max(1u, count / static_cast<uint32_t>(*per_task));
  return slots;
}

// Nothing if Slurm tells nothing. In a step, such as an interactive one, tasks are those of the
// step.
Result<std::vector<uint32_t>> slots_of(const Variables& environment, size_t nodes) {
  const bool in_step = find(environment, "SLURM_STEP_ID") != nullptr;
  const bool tasks_asked = find(environment, "SLURM_NTASKS") != nullptr ||
                           find(environment, "SLURM_NTASKS_PER_NODE") != nullptr;
  auto tasks = in_step ? Result<std::vector<uint32_t>>(std::vector<uint32_t>())
                       : counts_of(environment, "SLURM_TASKS_PER_NODE", nodes);
  if (!tasks || (tasks_asked && !tasks->empty())) return tasks;
  const auto gpus = gpus_of(environment);
  if (!gpus) return gpus.error();
  if (*gpus > 0) return std::vector<uint32_t>(nodes, *gpus);
  auto cpus = cpu_slots(environment, nodes);
  return !cpus || !cpus->empty() ? cpus : tasks;
}

}  // namespace

Result<std::string> slurm_job(const Variables& environment) {
  const std::string* job = find(environment, "SLURM_JOB_ID");
  if (job == nullptr) job = find(environment, "SLURM_JOBID");
  if (job == nullptr || find_nodes(environment) == nullptr) return std::string();
  if (!parse_count(*job, 1, UINT32_MAX)) return wrong("SLURM_JOB_ID", *job, "a number");
  return *job;
}

Result<std::vector<Host>> slurm_hosts(const Variables& environment) {
  const std::string* list = find_nodes(environment);
  if (list == nullptr) return std::vector<Host>();
  const std::string* tasks = find(environment, "SLURM_STEP_NUM_TASKS");
  if (tasks != nullptr && *tasks != "1") {
    return Error{
        "srun starts hvdlaunch " + in_quotes(*tasks) +
        " times, and each would start the whole job: expected srun --ntasks=1, or no srun"};
  }
  const auto names = names_of(*list);
  if (!names) return names.error();
  const auto slots = slots_of(environment, names->size());
  if (!slots) return slots.error();
  if (!slots->empty() && slots->size() < names->size()) {
    return Error{"Slurm counts " + std::to_string(slots->size()) + " of the " +
                 std::to_string(names->size()) + " nodes in " + in_quotes(*list)};
  }
  std::vector<Host> hosts;
  for (size_t i = 0; i < names->size(); ++i) {
    Host host;
    host.name = host.address = (*names)[i];
    host.source = kAllocationSource;
    host.slots_auto = slots->empty();
    host.slots_given = !slots->empty();
    if (host.slots_given) host.slots = (*slots)[i];
    hosts.push_back(std::move(host));
  }
  return hosts;
}

Result<std::vector<uint32_t>> parse_slurm_counts(std::string_view text, size_t nodes) {
  const Error malformed{"counts such as 4(x2),3"};
  std::vector<uint32_t> counts;
  for (const std::string_view part : split_host_list(text)) {
    const size_t open = part.find("(x");
    const auto count = parse_count(part.substr(0, open), 1, kMostSlots);
    std::optional<uint64_t> times = 1;
    if (open != part.npos) {
      if (!part.ends_with(')')) return malformed;
      times = parse_count(part.substr(open + 2, part.size() - open - 3), 1, UINT32_MAX);
    }
    if (!count || !times) return malformed;
    const size_t room = nodes - counts.size();
    counts.insert(counts.end(), std::min<size_t>(*times, room), static_cast<uint32_t>(*count));
  }
  return counts;
}

std::vector<std::string> srun_argv(const std::string& job, const Host& host) {
  return {"srun", "--jobid=" + job, "--nodelist=" + host.name, "--nodes=1", "--ntasks=1",
          "--job-name=hvdlaunch",
          // Beside the steps that are there, with all that the job has on the node.
          "--overlap", "--cpu-bind=none", "--mpi=none",
          // Whatever is written is passed on as it comes, and nothing is put between.
          "--unbuffered", "--quiet", "--export=ALL", "--chdir=/", "--kill-on-bad-exit=0",
          "--wait=0"};
}

bool srun_sees(std::string_view variable) {
  // How Slurm itself is found, and asked.
  static constexpr std::string_view kKept[] = {"SLURM_CONF", "SLURM_JWT", "SLURM_WORKING_CLUSTER",
                                               "SLURM_SACK_SOCKET"};
  if (std::find(std::begin(kKept), std::end(kKept), variable) != std::end(kKept)) return true;
  return !variable.starts_with("SLURM_") && !variable.starts_with("SRUN_");
}

}  // namespace hvd
