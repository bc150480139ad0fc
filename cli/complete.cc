#include "cli/complete.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/process.h"
#include "base/variables.h"
#include "launcher/discovery.h"
#include "launcher/host_choice.h"
#include "launcher/host_spec.h"
#include "launcher/open_channel.h"
#include "launcher/slurm.h"

namespace hvd {

namespace {

// Host::source of the host that is there when none was named.
constexpr const char* kThisMachine = "this machine";

void set_variable(Variables& variables, const std::string& name, const std::string& value) {
  std::erase_if(variables, [&name](const auto& variable) { return variable.first == name; });
  variables.emplace_back(name, value);
}

// What `auto` came to.
void count_slots(Host& host, uint32_t slots) {
  const uint32_t most = host.max_slots == 0 ? kMostSlots : host.max_slots;
  host.slots = std::clamp(slots, 1u, most);
  host.slots_auto = false;
  host.slots_given = true;
}

uint32_t own_slots(const Machine& machine) {
  return std::max(1u, machine.gpus > 0 ? machine.gpus : machine.cores);
}

// This machine, for those who named no host: with as many slots as they ask ranks.
Host this_host(const Asked& asked, const Machine& machine) {
  Host host;
  host.name = host.address = "localhost";
  host.local = true;
  host.source = kThisMachine;
  host.slots =
      asked.slots_per_host ? *asked.slots_per_host : asked.size.value_or(own_slots(machine));
  return host;
}

// A saved "localhost" is the machine that the job was launched on, and no other.
Status check_same_machine(const Job& job, const Machine& machine) {
  if (job.launched_on.empty() || job.launched_on == machine.hostname) return Ok{};
  for (const Host& host : job.hosts) {
    if (!host.local || host_identity(host.name, 0) == host_identity(job.launched_on, 0)) continue;
    return Error{"the job ran on " + in_quotes(host.name) + " of the machine " +
                 in_quotes(job.launched_on) + ", and this is " + in_quotes(machine.hostname) +
                 ": expected its hosts with -H, by names that hold here"};
  }
  return Ok{};
}

bool are_of_an_allocation(const std::vector<Host>& hosts) {
  return !hosts.empty() && hosts[0].source == kAllocationSource;
}

// Inside an allocation of Slurm its hosts are meant if nobody names others. Those of a saved job
// were another allocation's.
Status take_allocation(const Job& job, const Asked& asked, const Variables& environment,
                       std::vector<Host>& hosts) {
  const bool saved = are_of_an_allocation(job.hosts);
  const bool wanted = asked.transport.value_or(job.transport) != Transport::local;
  if (!hosts.empty() || !wanted || !(job.hosts.empty() || saved)) return Ok{};
  const auto allocation = slurm_job(environment);
  if (!allocation) return allocation.error();
  if (!allocation->empty()) {
    auto given = slurm_hosts(environment);
    if (!given) return given.error();
    hosts = std::move(*given);
  } else if (saved) {
    return Error{
        "the job ran in an allocation of Slurm, and this is none: expected its hosts with -H"};
  }
  return Ok{};
}

// A script that is asked again and again says all there is to say about hosts.
Status take_discovered(Job& job, const Asked& asked, std::vector<Host>& hosts) {
  if (asked.discovery) {
    if (!hosts.empty()) {
      return Error{"--host-discovery-script names the hosts, and so does " + hosts[0].source +
                   ": expected one of them"};
    }
    job.discovery = *asked.discovery;
  } else if (!hosts.empty()) {
    job.discovery.clear();
  }
  if (job.discovery.empty()) return Ok{};
  const auto& choices = asked.include.empty() ? asked.exclude : asked.include;
  if (!choices.empty()) {
    return Error{choices[0].place +
                 ": the hosts come from --host-discovery-script, which has to choose them itself"};
  }
  auto found = discover_hosts(job.discovery);
  if (!found) return found.error();
  hosts = std::move(*found);
  return Ok{};
}

Status settle_hosts(Job& job, const Asked& asked, std::vector<Host> hosts, const Machine& machine) {
  bool own = job.hosts.size() == 1 && job.hosts[0].source == kThisMachine;
  if (!hosts.empty()) {
    job.hosts = std::move(hosts);
    own = false;
  } else if (job.hosts.empty()) {
    job.hosts = {this_host(asked, machine)};
    own = true;
  } else {
    if (const Status status = check_same_machine(job, machine); !status) return status;
    if (own && (asked.size || asked.slots_per_host)) job.hosts = {this_host(asked, machine)};
  }
  auto chosen = choose_hosts(std::move(job.hosts), asked.include, asked.exclude);
  if (!chosen) return chosen.error();
  job.hosts = std::move(*chosen);
  if (own) return Ok{};
  mark_local(job.hosts, machine);
  return check_no_duplicates(job.hosts);
}

// ~/x and relative paths mean the same wherever the job goes on.
std::string key_path(const std::string& path, const Surroundings& surroundings) {
  const std::string* home = find_variable(surroundings.environment, "HOME");
  if (path.starts_with("~/") && home != nullptr) return *home + path.substr(1);
  return absolute_path(path, surroundings.directory);
}

Status choose_ssh(Job& job, const Asked& asked, const Surroundings& surroundings) {
  if (asked.ssh_port) job.ssh_port = *asked.ssh_port;
  if (asked.identity) job.identity = key_path(*asked.identity, surroundings);
  for (Host& host : job.hosts) {
    if (host.identity.empty() && asked.identity && !host.local) host.identity = *asked.identity;
    if (!host.identity.empty()) host.identity = key_path(host.identity, surroundings);
    if (!is_utf8(host.identity)) {
      return Error{"the private key " + in_quotes(host.identity) + " has a name that is not UTF-8"};
    }
    if (host.port == 0 && asked.ssh_port && !host.local) host.port = *asked.ssh_port;
  }
  return Ok{};
}

// What reaches the hosts. Either option given anew replaces both that a saved job had.
Status choose_transport(Job& job, const Asked& asked) {
  const bool other = asked.transport && *asked.transport != Transport::automatic;
  if (!asked.rsh.empty() && other) {
    return Error{"--rsh and --transport " + transport_name(*asked.transport) +
                 " are both given: expected one of them"};
  }
  if (asked.transport || !asked.rsh.empty()) {
    job.transport = asked.transport.value_or(Transport::automatic);
    job.rsh = asked.rsh;
  }
  if (job.transport != Transport::local) return Ok{};
  for (Host& host : job.hosts) host.local = true;
  return Ok{};
}

// Hosts of an allocation are reached by srun, this machine too: there the ranks have what Slurm
// gave the job, and end with it.
Status choose_slurm(Job& job, const Variables& environment) {
  const bool by_itself =
      job.transport == Transport::automatic && job.rsh.empty() && are_of_an_allocation(job.hosts);
  if (job.transport != Transport::slurm && !by_itself) return Ok{};
  const auto allocation = slurm_job(environment);
  if (!allocation) return allocation.error();
  if (allocation->empty()) {
    return Error{
        "--transport slurm: this is no allocation of Slurm: expected SLURM_JOB_ID and "
        "SLURM_JOB_NODELIST, as salloc and sbatch set them"};
  }
  job.allocation = *allocation;
  for (Host& host : job.hosts) host.local = false;
  return Ok{};
}

Status limit_slots(Host& host, const Asked& asked) {
  const uint32_t wanted = *asked.slots_per_host;
  if (host.slots_given && host.slots < wanted && !asked.oversubscribe) {
    return Error{"--slots-per-host " + std::to_string(wanted) + " is above the " +
                 std::to_string(host.slots) + (host.slots == 1 ? " slot of " : " slots of ") +
                 host.name + " (" + host.source + "); --oversubscribe allows it"};
  }
  const std::string wrong = slots_above_limit(wanted, host.max_slots);
  if (!wrong.empty()) {
    return Error{"--slots-per-host: " + host.name + " (" + host.source + "): " + wrong};
  }
  host.slots = wanted;
  host.slots_auto = false;
  return Ok{};
}

// Hosts whose slots only they can tell are added to `unsized`.
Status choose_slots(Job& job, const Asked& asked, const Machine& machine,
                    std::vector<uint32_t>& unsized) {
  if (asked.slots_per_host) job.slots_per_host = *asked.slots_per_host;
  for (uint32_t index = 0; index < job.hosts.size(); ++index) {
    Host& host = job.hosts[index];
    if (host.source != kThisMachine && asked.slots_per_host) {
      if (const Status status = limit_slots(host, asked); !status) return status;
    }
    if (!host.slots_auto) continue;
    if (!host.local && host.gpus.empty()) {
      unsized.push_back(index);
      continue;
    }
    count_slots(host,
                host.gpus.empty() ? own_slots(machine) : static_cast<uint32_t>(host.gpus.size()));
  }
  return Ok{};
}

uint64_t all_slots(const Job& job) {
  uint64_t slots = 0;
  for (const Host& host : job.hosts) slots += host.spare ? 0 : host.slots;
  return slots;
}

bool may_grow(const Host& host) {
  return !host.spare && (host.max_slots == 0 || host.slots < host.max_slots);
}

// Gives every host in turn one slot more until the ranks fit or no host may have more.
void spread(Job& job) {
  uint64_t missing = job.size - std::min<uint64_t>(job.size, all_slots(job));
  while (missing > 0 && std::any_of(job.hosts.begin(), job.hosts.end(), may_grow)) {
    for (Host& host : job.hosts) {
      if (missing == 0 || !may_grow(host)) continue;
      ++host.slots;
      --missing;
    }
  }
}

Result<Placement> choose_size(Job& job, const Asked& asked) {
  if (asked.size) {
    job.size = *asked.size;
  } else if (job.size == 0) {
    const uint64_t slots = all_slots(job);
    if (slots > kMostRanks) {
      return Error{"the hosts have " + std::to_string(slots) + " slots: expected at most " +
                   std::to_string(kMostRanks) + " ranks"};
    }
    job.size = std::max(1u, static_cast<uint32_t>(slots));
  }
  if (asked.oversubscribe) spread(job);
  auto placement = place(job.hosts, job.size);
  if (placement) return placement;
  const std::string place =
      asked.size ? asked.size_source + " " + std::to_string(job.size) + ": " : "";
  const bool few = all_slots(job) > 0;
  const char* way_out = !few                  ? ""
                        : asked.oversubscribe ? "; max_slots is their limit"
                                              : "; --oversubscribe allows more ranks than slots";
  return Error{place + placement.error().text + way_out};
}

// Hosts that were discovered and hold no ranks stand by.
void spare_the_rest(Job& job, const Placement& placement) {
  for (Host& host : job.hosts) host.spare = true;
  for (const HostPlaces& places : placement) job.hosts[places.host].spare = false;
}

Status choose_variables(Job& job, const Asked& asked, const Surroundings& surroundings,
                        std::vector<std::string>& notices) {
  Variables travelling = forwarded(surroundings.environment);
  // What a saved job had of PATH and the like is part of its command.
  for (const auto& [name, value] : job.forwarded) set_variable(travelling, name, value);
  job.forwarded = std::move(travelling);

  const std::vector<std::string> saved_names = std::exchange(job.set_by_name, {});
  for (const std::string& name : saved_names) {
    const std::string* value = find_variable(surroundings.environment, name);
    if (value == nullptr) {
      notices.push_back("the job was started with -x " + name + ", which is not set here");
      continue;
    }
    set_variable(job.set, name, *value);
    job.set_by_name.push_back(name);
  }
  std::vector<VariableWord> words = asked.file_variables;
  words.insert(words.end(), asked.variables.begin(), asked.variables.end());
  for (const auto& [word, place] : words) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    std::erase(job.set_by_name, name);
    if (equals != std::string::npos) {
      set_variable(job.set, name, word.substr(equals + 1));
      continue;
    }
    const std::string* value = find_variable(surroundings.environment, name);
    if (value == nullptr) {
      return Error{place + " " + in_quotes(name) + ": no variable of that name is set here"};
    }
    set_variable(job.set, name, *value);
    job.set_by_name.push_back(name);
  }
  return Ok{};
}

// A program of the active Python environment is meant by its path: a host that lacks it must say so
// and not run another one of that name.
void pin_program(Job& job, const Surroundings& surroundings) {
  const std::string* path = find_variable(surroundings.environment, "PATH");
  if (path == nullptr || job.argv[0].find('/') != std::string::npos) return;
  const auto found = find_program(job.argv[0], *path, surroundings.directory);
  const auto* program = std::get_if<std::string>(&found);
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string* root = find_variable(surroundings.environment, name);
    if (program == nullptr || root == nullptr || root->empty()) continue;
    if (program->starts_with(*root + "/")) job.argv[0] = *program;
  }
}

void choose_limits(Job& job, const Asked& asked) {
  if (asked.start_timeout) job.start_timeout = *asked.start_timeout;
  if (asked.silence) job.silence = *asked.silence;
  if (asked.survive) job.survive = *asked.survive;
  if (asked.grace) job.grace = *asked.grace;
  if (asked.wall_time) job.wall_time = asked.wall_time;
  if (asked.stall_timeout) {
    job.stall_timeout = *asked.stall_timeout;
    job.stall_asked = *asked.stall_timeout > Duration::zero();
  }
  if (asked.stall_action) job.stall_action = *asked.stall_action;
  if (asked.failure_grace) job.failure_grace = *asked.failure_grace;
  if (asked.max_restarts) job.max_restarts = asked.max_restarts;
  if (!asked.rules.empty()) job.rules = asked.rules;
  if (asked.max_host_failures) job.max_host_failures = *asked.max_host_failures;
  if (asked.checkpoint_every) job.checkpoint_every = *asked.checkpoint_every;
  if (asked.checkpoint_keep) job.checkpoint_keep = *asked.checkpoint_keep;
  if (asked.gpus_per_rank) job.gpus_per_rank = asked.gpus_per_rank;
  if (asked.binding) job.binding = *asked.binding;
  job.oversubscribe = job.oversubscribe || asked.oversubscribe;
  job.substitute = job.substitute || asked.substitute;
}

Status check_rank(const std::string& option, uint32_t rank, const Job& job) {
  if (rank < job.size) return Ok{};
  return Error{option + ": there is no rank " + std::to_string(rank) +
               ": expected ranks from 0 to " + std::to_string(job.size - 1)};
}

Status add_file(const std::string& path, HostsAndSettings& to) {
  auto file = parse_host_file(path);
  if (!file) return file.error();
  for (Host& host : file->hosts) to.hosts.push_back(std::move(host));
  for (Setting& setting : file->job) {
    for (const Setting& other : to.job) {
      const Option* option = find_option(setting.name);
      if (option == nullptr || option != find_option(other.name)) continue;
      return Error{setting.source + ": option " + in_quotes(setting.name) +
                   " is given twice, first at " + other.source};
    }
    to.job.push_back(std::move(setting));
  }
  return Ok{};
}

Status add_word(const std::string& word, HostsAndSettings& to) {
  const HostWord kind = kind_of_host_word(word);
  if (kind == HostWord::list) {
    auto hosts = parse_host_list(word, "-H");
    if (!hosts) return hosts.error();
    for (Host& host : *hosts) to.hosts.push_back(std::move(host));
    return Ok{};
  }
  const Status status = add_file(word, to);
  if (kind != HostWord::file_by_chance) return status;
  if (!status) {
    return Error{status.error().text + "; for a host of that name write -H " + word + ":1"};
  }
  to.notices.push_back("-H " + word + " is the file of that name; for a host write -H " + word +
                       ":1");
  return Ok{};
}

}  // namespace

std::string absolute_path(const std::string& path, const std::string& directory) {
  std::string whole = (std::filesystem::path(directory) / path).lexically_normal().string();
  while (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  return whole;
}

Result<HostsAndSettings> read_hosts(const std::vector<std::string>& words,
                                    const std::vector<std::string>& files) {
  HostsAndSettings read;
  if (!words.empty() && !files.empty()) {
    return Error{"-H and --hostfile are both given: expected one of them"};
  }
  for (const std::string& word : words) {
    if (const Status status = add_word(word, read); !status) return status.error();
  }
  for (const std::string& file : files) {
    if (const Status status = add_file(file, read); !status) return status.error();
  }
  if (read.hosts.size() > kMostHosts) {
    return Error{"more than " + std::to_string(kMostHosts) + " hosts are named"};
  }
  if (const Status status = check_no_duplicates(read.hosts); !status) return status.error();
  return read;
}

Result<RunCommand> complete(Job job, const Asked& asked, std::vector<Host> hosts,
                            const std::vector<std::string>& argv,
                            const Surroundings& surroundings) {
  RunCommand command;
  command.dry_run = asked.dry_run;
  command.detach = asked.detach;
  command.print_env = asked.print_env;
  if (!argv.empty()) job.argv = argv;
  if (asked.print_env) job.argv = {"env"};
  if (job.argv.empty()) {
    return Error{"no program is named: expected hvdlaunch [OPTIONS] [--] PROGRAM [ARGS...]"};
  }
  if (job.argv[0].empty()) return Error{"the program's name is empty"};
  if (asked.directory) {
    job.workdir = absolute_path(*asked.directory, surroundings.directory);
  } else if (job.workdir.empty()) {
    job.workdir = surroundings.directory;
  }
  if (asked.checkpoint_dir) job.checkpoint_dir = absolute_path(*asked.checkpoint_dir, job.workdir);
  pin_program(job, surroundings);
  const Machine& machine = surroundings.machine;
  Status status = take_discovered(job, asked, hosts);
  if (status) status = take_allocation(job, asked, surroundings.environment, hosts);
  if (status) status = settle_hosts(job, asked, std::move(hosts), machine);
  if (status) status = choose_transport(job, asked);
  if (status) status = choose_slurm(job, surroundings.environment);
  if (status) status = choose_ssh(job, asked, surroundings);
  if (status) status = choose_slots(job, asked, machine, command.unsized);
  if (!status) return status.error();
  choose_limits(job, asked);
  job.input_rank = asked.input_rank;
  if (job.input_rank && command.detach) {
    return Error{"--stdin: a job with --detach leaves its standard input to others"};
  }
  status = choose_variables(job, asked, surroundings, command.notices);
  if (!status) return status.error();
  job.launched_on = machine.hostname;
  command.job = std::move(job);
  command.settings = asked.settings;
  if (asked.no_prefix) command.settings.style.prefix = false;
  if (!command.settings.log_dir.empty()) {
    command.settings.log_dir = absolute_path(command.settings.log_dir, surroundings.directory);
  }
  command.asked = asked;
  if (command.unsized.empty()) status = place_ranks(command, {});
  if (!status) return status.error();
  return command;
}

Status place_ranks(RunCommand& command, const std::vector<AgentHello>& told) {
  HVD_CHECK(told.size() == command.unsized.size());
  for (size_t i = 0; i < told.size(); ++i) {
    Host& host = command.job.hosts[command.unsized[i]];
    count_slots(host, told[i].gpus > 0 ? told[i].gpus : told[i].cores);
  }
  command.unsized.clear();
  auto placement = choose_size(command.job, command.asked);
  if (!placement) return placement.error();
  command.placement = std::move(*placement);
  if (!command.job.discovery.empty()) spare_the_rest(command.job, command.placement);
  const std::set<uint32_t>& shown = command.settings.only_ranks;
  const Status there =
      shown.empty() ? Status(Ok{}) : check_rank("--only-ranks", *shown.rbegin(), command.job);
  if (!there || !command.job.input_rank) return there;
  return check_rank("--stdin", *command.job.input_rank, command.job);
}

}  // namespace hvd
