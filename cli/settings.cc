#include "cli/settings.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cli/env_file.h"
#include "launcher/host_spec.h"
#include "launcher/open_channel.h"
#include "launcher/rsh.h"
#include "launcher/suggest.h"

namespace hvd {

namespace {

constexpr uint64_t kMostRestarts = 1'000'000;
constexpr Duration kShortestStall = std::chrono::milliseconds(100);
constexpr Duration kShortestSurvival = std::chrono::seconds(1);
constexpr Duration kShortestSilence = std::chrono::milliseconds(200);
constexpr Duration kShortestWallTime = std::chrono::seconds(1);

Error expected(const OptionValue& value, const std::string& what) {
  return Error{value.place + " " + in_quotes(value.text) + ": expected " + what};
}

template <class T>
Status read_count(T& to, const OptionValue& value, uint64_t least, uint64_t most) {
  const auto count = parse_count(value.text, least, most);
  if (!count) {
    return expected(value,
                    "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  to = static_cast<typename T::value_type>(*count);
  return Ok{};
}

Status read_duration(std::optional<Duration>& to, const OptionValue& value, Duration least) {
  const auto duration = parse_duration(value.text);
  if (!duration) return Error{value.place + ": " + duration.error().text};
  if (*duration < least) return expected(value, "at least " + format_duration(least));
  to = *duration;
  return Ok{};
}

// Given on the command line, which wins over a [job] table.
bool typed(const OptionValue& value) {
  return value.place.starts_with("--");
}

Status read_path(std::optional<std::string>& to, const OptionValue& value) {
  if (value.text.empty()) return expected(value, "a path");
  to = value.text;
  return Ok{};
}

Status set_size(Asked& asked, const OptionValue& value) {
  asked.size_source = value.place;
  return read_count(asked.size, value, 1, kMostRanks);
}

Status set_slots_per_host(Asked& asked, const OptionValue& value) {
  return read_count(asked.slots_per_host, value, 1, kMostSlots);
}

Status set_oversubscribe(Asked& asked, const OptionValue&) {
  asked.oversubscribe = true;
  return Ok{};
}

Status add_host_word(Asked& asked, const OptionValue& value) {
  if (value.text.empty()) return expected(value, "hosts such as h1:4,h2:4, or a host file");
  asked.host_words.push_back(value.text);
  return Ok{};
}

Status add_host_file(Asked& asked, const OptionValue& value) {
  if (value.text.empty()) return expected(value, "a path");
  asked.host_files.push_back(value.text);
  return Ok{};
}

Status add_choices(std::vector<HostChoice>& to, const OptionValue& value) {
  for (const std::string_view entry : split_host_list(value.text)) {
    if (entry.empty()) return expected(value, "hosts such as h1,gpu[01-04], or labels as rack=a");
    to.push_back({std::string(entry), value.place});
  }
  return Ok{};
}

Status add_included(Asked& asked, const OptionValue& value) {
  return add_choices(asked.include, value);
}

Status add_excluded(Asked& asked, const OptionValue& value) {
  return add_choices(asked.exclude, value);
}

Status set_gpus_per_rank(Asked& asked, const OptionValue& value) {
  return read_count(asked.gpus_per_rank, value, 0, kMostSlots);
}

Status set_binding(Asked& asked, const OptionValue& value) {
  if (value.text == "none") {
    asked.binding = Binding::none;
  } else if (value.text == "core") {
    asked.binding = Binding::core;
  } else if (value.text == "numa") {
    asked.binding = Binding::numa;
  } else {
    return expected(value, "none, core or numa");
  }
  return Ok{};
}

Status set_discovery(Asked& asked, const OptionValue& value) {
  if (value.text.empty()) return Error{value.place + ": expected a command that prints hosts"};
  asked.discovery = value.text;
  return Ok{};
}

Status set_ssh_port(Asked& asked, const OptionValue& value) {
  return read_count(asked.ssh_port, value, 1, 65'535);
}

Status set_identity(Asked& asked, const OptionValue& value) {
  return read_path(asked.identity, value);
}

Status set_accept_new(Asked& asked, const OptionValue&) {
  asked.settings.accept_new_host_keys = true;
  return Ok{};
}

Status set_rsh(Asked& asked, const OptionValue& value) {
  auto words = parse_rsh(value.text);
  if (!words) return Error{value.place + " " + in_quotes(value.text) + ": " + words.error().text};
  asked.rsh = std::move(*words);
  asked.rsh_typed = typed(value);
  if (asked.rsh_typed && !asked.transport_typed) asked.transport.reset();
  return Ok{};
}

Status set_transport(Asked& asked, const OptionValue& value) {
  asked.transport = transport_of(value.text);
  asked.transport_typed = typed(value);
  if (asked.transport_typed && !asked.rsh_typed) asked.rsh.clear();
  if (asked.transport) return Ok{};
  std::string names;
  for (const std::string& name : transport_names()) names += (names.empty() ? "" : ", ") + name;
  return expected(value, "one of " + names);
}

Status add_variable(Asked& asked, const OptionValue& value) {
  const Status status = check_variable_word(value.text);
  if (!status) return Error{value.place + " " + status.error().text};
  asked.variables.push_back({value.text, value.place});
  return Ok{};
}

Status add_variable_file(Asked& asked, const OptionValue& value) {
  if (value.text.empty()) return expected(value, "a path");
  auto words = read_env_file(value.text);
  if (!words) return Error{value.place + ": " + words.error().text};
  for (VariableWord& word : *words) word.place = value.place + ": " + word.place;
  asked.file_variables.insert(asked.file_variables.end(), words->begin(), words->end());
  return Ok{};
}

Status set_substitute(Asked& asked, const OptionValue&) {
  asked.substitute = true;
  return Ok{};
}

Status set_directory(Asked& asked, const OptionValue& value) {
  return read_path(asked.directory, value);
}

Status add_rule(Asked& asked, const OptionValue& value) {
  auto rule = parse_rule(value.text);
  if (!rule) return Error{value.place + " " + in_quotes(value.text) + ": " + rule.error().text};
  asked.rules.push_back(std::move(*rule));
  return Ok{};
}

Status set_max_host_failures(Asked& asked, const OptionValue& value) {
  return read_count(asked.max_host_failures, value, 0, kMostRestarts);
}

Status set_max_restarts(Asked& asked, const OptionValue& value) {
  return read_count(asked.max_restarts, value, 0, kMostRestarts);
}

Status set_checkpoint_dir(Asked& asked, const OptionValue& value) {
  return read_path(asked.checkpoint_dir, value);
}

Status set_checkpoint_every(Asked& asked, const OptionValue& value) {
  if (!parse_count(value.text, 1, 1'000'000'000'000)) {
    const auto duration = parse_duration(value.text);
    const bool unit = value.text.find_first_not_of("0123456789.") != std::string::npos;
    if (!duration || !unit || *duration == Duration::zero()) {
      return expected(value, "a number of steps such as 100, or a duration such as 10m");
    }
  }
  asked.checkpoint_every = value.text;
  return Ok{};
}

Status set_checkpoint_keep(Asked& asked, const OptionValue& value) {
  return read_count(asked.checkpoint_keep, value, 1, 1'000'000);
}

Status set_grace(Asked& asked, const OptionValue& value) {
  return read_duration(asked.grace, value, Duration::zero());
}

Status set_failure_grace(Asked& asked, const OptionValue& value) {
  return read_duration(asked.failure_grace, value, Duration::zero());
}

Status set_wall_time(Asked& asked, const OptionValue& value) {
  return read_duration(asked.wall_time, value, kShortestWallTime);
}

Status set_start_timeout(Asked& asked, const OptionValue& value) {
  return read_duration(asked.start_timeout, value, std::chrono::milliseconds(1));
}

Status set_silence(Asked& asked, const OptionValue& value) {
  return read_duration(asked.silence, value, kShortestSilence);
}

Status set_survive(Asked& asked, const OptionValue& value) {
  return read_duration(asked.survive, value, kShortestSurvival);
}

Status set_stall_timeout(Asked& asked, const OptionValue& value) {
  const auto duration = parse_duration(value.text);
  if (duration && *duration == Duration::zero()) {
    asked.stall_timeout = *duration;
    return Ok{};
  }
  return read_duration(asked.stall_timeout, value, kShortestStall);
}

Status set_stall_action(Asked& asked, const OptionValue& value) {
  if (value.text != "warn" && value.text != "restart") return expected(value, "warn or restart");
  asked.stall_action = value.text == "warn" ? StallAction::warn : StallAction::restart;
  return Ok{};
}

Status set_prefix(Asked& asked, const OptionValue& value) {
  static const std::set<std::string> kNames = {"rank", "local_rank", "size", "host", "attempt"};
  const std::string& text = value.text;
  for (size_t open = text.find('{'); open != std::string::npos; open = text.find('{', open + 1)) {
    const size_t close = text.find('}', open);
    if (close == std::string::npos || !kNames.contains(text.substr(open + 1, close - open - 1))) {
      return expected(value, "{rank}, {local_rank}, {size}, {host} or {attempt} in braces");
    }
  }
  asked.no_prefix = false;
  asked.settings.style.prefix = !text.empty();
  asked.settings.style.prefix_template = text;
  return Ok{};
}

Status set_no_prefix(Asked& asked, const OptionValue&) {
  asked.no_prefix = true;
  return Ok{};
}

Status set_timestamps(Asked& asked, const OptionValue&) {
  asked.settings.style.timestamps = true;
  return Ok{};
}

// "0,3,8-11"
Status add_only_ranks(Asked& asked, const OptionValue& value) {
  std::string_view rest = value.text;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const size_t dash = part.find('-');
    const auto first = parse_count(part.substr(0, dash), 0, kMostRanks - 1);
    const auto last = dash == std::string_view::npos
                          ? first
                          : parse_count(part.substr(dash + 1), 0, kMostRanks - 1);
    if (!first || !last || *first > *last) return expected(value, "ranks such as 0,3,8-11");
    for (uint64_t rank = *first; rank <= *last; ++rank) {
      asked.settings.only_ranks.insert(static_cast<uint32_t>(rank));
    }
    if (comma == std::string_view::npos) return Ok{};
    rest.remove_prefix(comma + 1);
  }
}

Status set_fold(Asked& asked, const OptionValue&) {
  asked.settings.fold = true;
  return Ok{};
}

Status set_input_rank(Asked& asked, const OptionValue& value) {
  return read_count(asked.input_rank, value, 0, kMostRanks - 1);
}

Status set_log_dir(Asked& asked, const OptionValue& value) {
  if (value.text.empty()) return expected(value, "a path");
  asked.settings.log_dir = value.text;
  return Ok{};
}

Status set_verbose(Asked& asked, const OptionValue&) {
  asked.settings.verbosity = 1;
  return Ok{};
}

Status set_quiet(Asked& asked, const OptionValue&) {
  asked.settings.verbosity = -1;
  return Ok{};
}

Status set_dry_run(Asked& asked, const OptionValue&) {
  asked.dry_run = true;
  return Ok{};
}

Status set_detach(Asked& asked, const OptionValue&) {
  asked.detach = true;
  return Ok{};
}

Status set_print_env(Asked& asked, const OptionValue&) {
  asked.print_env = true;
  return Ok{};
}

// --help and --version are answered before any setting is applied.
Status no_effect(Asked&, const OptionValue&) {
  return Ok{};
}

Status not_yet(Asked&, const OptionValue& value) {
  return Error{value.place +
               ": jobs that change their size are coming and are not in this version"};
}

constexpr const char* kRanks = "Ranks and hosts";
constexpr const char* kSsh = "Reaching hosts";
constexpr const char* kProgram = "The program";
constexpr const char* kFailures = "Failures and checkpoints";
constexpr const char* kTimes = "Time limits (10, 0.5, 250ms, 90s, 5m, 2h30m)";
constexpr const char* kOutput = "Output";
constexpr const char* kOther = "Other";

using Takes = Option::Takes;

constexpr Option kOptions[] = {
    {"-n,--np,--num-proc", "N", kRanks, "ranks to start, also -np N (default: all slots)",
     Takes::whole, false, true, set_size},
    {"-H,--hosts,--host", "SPEC", kRanks,
     "a host file, or a list such as h1:4,me@h2:4,\n"
     "[fd00::2]:2,gpu[01-16]:8; may be repeated\n"
     "(default: the hosts of Slurm's allocation, or this)",
     Takes::text, true, false, add_host_word},
    {"--hostfile,--machinefile", "FILE", kRanks, "a host file: TOML, or lines of `name slots=4`",
     Takes::text, true, false, add_host_file},
    {"--host-discovery-script", "COMMAND", kRanks,
     "prints the hosts, as lines of h1:4 or [[host]]\n"
     "tables, and is run again every second: hosts that\n"
     "come stand by, hosts that go give up their ranks",
     Takes::text, false, false, set_discovery},
    {"-N,--slots-per-host,--npernode", "N", kRanks, "slots of every host", Takes::whole, false,
     true, set_slots_per_host},
    {"--oversubscribe", "", kRanks, "more ranks than slots, spread over the hosts", Takes::flag,
     false, true, set_oversubscribe},
    {"--include", "LIST", kRanks,
     "only these of the hosts: names, gpu[01-04], or a\n"
     "label as rack=a; may be repeated",
     Takes::text, true, true, add_included},
    {"--exclude", "LIST", kRanks, "none of these hosts", Takes::text, true, true, add_excluded},
    {"--gpus-per-rank", "K", kRanks,
     "each rank sees its own K GPUs of its host; 0: none\n"
     "(default: every rank sees all of them)",
     Takes::whole, false, true, set_gpus_per_rank},
    {"--bind", "WHAT", kRanks,
     "core or numa: each rank on its share of the cores,\n"
     "or on a NUMA node (default: none)",
     Takes::text, false, true, set_binding},
    {"-p,--ssh-port", "PORT", kSsh, "for hosts that give none", Takes::whole, false, true,
     set_ssh_port},
    {"-i,--ssh-identity-file", "FILE", kSsh, "private key, for hosts that give none", Takes::text,
     false, true, set_identity},
    {"--accept-new-host-keys", "", kSsh,
     "trust hosts that are not in known_hosts yet;\n"
     "a changed key is refused all the same",
     Takes::flag, false, false, set_accept_new},
    {"--rsh", "COMMAND", kSsh,
     "reach hosts by a program of your own, such as\n"
     "'kubectl exec -i {host} --'; also {user}, {port}",
     Takes::text, false, true, set_rsh},
    {"--transport", "NAME", kSsh,
     "libssh (built in), openssh (the program ssh),\n"
     "slurm (srun; by itself inside an allocation),\n"
     "local (all hosts are this one), auto (default)",
     Takes::text, false, true, set_transport},
    {"-x,--env", "NAME[=VALUE]", kProgram, "set a variable for all ranks; may be repeated",
     Takes::text, true, true, add_variable},
    {"--stdin", "RANK", kProgram, "give this rank our standard input (default: nobody)",
     Takes::whole, false, true, set_input_rank},
    {"--env-file", "FILE", kProgram, "variables as -x takes them, one to a line", Takes::text, true,
     true, add_variable_file},
    {"--substitute", "", kProgram,
     "replace {rank} {local_rank} {size} {host} {attempt}\n"
     "{resume_from} {resume_step} in the arguments",
     Takes::flag, false, true, set_substitute},
    {"--wdir", "DIR", kProgram, "directory of the ranks (default: this one)", Takes::text, false,
     true, set_directory},
    {"--max-restarts,--reset-limit", "N", kFailures,
     "relaunches without progress before giving up\n"
     "(default: 10 when the job can go on, else 0)",
     Takes::whole, false, true, set_max_restarts},
    {"--max-host-failures", "N", kFailures,
     "a host that failed so often is excluded; 0: never\n"
     "(default: 5)",
     Takes::whole, false, true, set_max_host_failures},
    {"--rule", "'WHAT: ACTION'", kFailures,
     "exit CODE, signal NAME, memory, log REGEX, host NAME,\n"
     "stall or host-lost: stop, restart, exclude-host or\n"
     "ignore-budget; may be repeated, the first that fits\n"
     "counts",
     Takes::text, true, true, add_rule},
    {"--checkpoint-dir", "DIR", kFailures, "where the ranks save, and resume from", Takes::text,
     false, true, set_checkpoint_dir},
    {"--checkpoint-every", "N|TIME", kFailures, "handed to the program: steps, or time",
     Takes::whole_or_text, false, true, set_checkpoint_every},
    {"--checkpoint-keep", "N", kFailures, "complete checkpoints to keep (default: 3)", Takes::whole,
     false, true, set_checkpoint_keep},
    {"--grace", "TIME", kTimes, "from TERM to KILL at a stop asked for (30s)", Takes::duration,
     false, true, set_grace},
    {"--failure-grace", "TIME", kTimes, "from TERM to KILL after a failure (3s)", Takes::duration,
     false, true, set_failure_grace},
    {"--walltime", "TIME", kTimes,
     "stop in order, so early that the grace lies inside\n"
     "(default: none)",
     Takes::duration, false, true, set_wall_time},
    {"--start-timeout", "TIME", kTimes, "for all hosts to be reached (60s)", Takes::duration, false,
     true, set_start_timeout},
    {"--heartbeat-timeout", "TIME", kTimes, "silence after which a host is lost (10s)",
     Takes::duration, false, true, set_silence},
    {"--survive", "TIME", kTimes,
     "without hvdlaunch the ranks go on for so long, and\n"
     "`hvdlaunch attach` watches them again (default: none)",
     Takes::duration, false, true, set_survive},
    {"--stall-timeout", "TIME", kTimes,
     "without progress for so long, a rank that has made\n"
     "some is stalled; 0: never (default: 60s)",
     Takes::duration, false, true, set_stall_timeout},
    {"--stall-action", "WHAT", kTimes,
     "warn, or restart: as after a failure (default:\n"
     "warn)",
     Takes::text, false, true, set_stall_action},
    {"--prefix", "TEMPLATE", kOutput,
     "before each line (default: '{rank}@{host}: ');\n"
     "also {local_rank}, {size}, {attempt}",
     Takes::text, false, true, set_prefix},
    {"--no-prefix", "", kOutput, "lines as the ranks wrote them", Takes::flag, false, true,
     set_no_prefix},
    {"--timestamps", "", kOutput, "the time before each line", Takes::flag, false, true,
     set_timestamps},
    {"--only-ranks", "LIST", kOutput, "show only these ranks, such as 0,3,8-11",
     Takes::whole_or_text, true, true, add_only_ranks},
    {"--fold", "", kOutput, "identical lines of several ranks once, as 'x63: '", Takes::flag, false,
     true, set_fold},
    {"--log-dir,--output-filename", "DIR", kOutput, "also a file for each rank and attempt here",
     Takes::text, false, true, set_log_dir},
    {"-v,--verbose", "", kOutput, "say more of what hvdlaunch does", Takes::flag, false, true,
     set_verbose},
    {"-q,--quiet", "", kOutput, "say nothing but errors", Takes::flag, false, true, set_quiet},
    {"--detach", "", kOther,
     "go on in the background once all ranks run; says\n"
     "which process it is and where the output goes",
     Takes::flag, false, false, set_detach},
    {"--dry-run", "", kOther, "print which rank would run where, and stop", Takes::flag, false,
     false, set_dry_run},
    {"--print-env", "", kOther,
     "run `env` in place of the program: what each rank is\n"
     "given",
     Takes::flag, false, false, set_print_env},
    {"-h,--help", "", kOther, "print this", Takes::flag, false, false, no_effect},
    {"-V,--version", "", kOther, "print the version", Takes::flag, false, false, no_effect},
    {"--elastic", "", "", "", Takes::flag, false, true, not_yet},
    {"--min-np", "N", "", "", Takes::whole, false, true, not_yet},
    {"--max-np", "N", "", "", Takes::whole, false, true, not_yet},
};

// What a setting of a [job] table must be.
std::string expectation(Takes takes) {
  switch (takes) {
    case Takes::flag:
      return "true or false";
    case Takes::whole:
      return "a whole number";
    case Takes::duration:
      return "a number of seconds or a duration such as \"5m\"";
    case Takes::text:
      return "a string";
    case Takes::whole_or_text:
      return "a whole number or a string";
  }
  return "";
}

bool type_fits(Takes takes, Setting::Type type) {
  using Type = Setting::Type;
  switch (takes) {
    case Takes::flag:
      return type == Type::flag;
    case Takes::whole:
      return type == Type::whole;
    case Takes::duration:
      return type == Type::whole || type == Type::real || type == Type::text;
    case Takes::text:
      return type == Type::text;
    case Takes::whole_or_text:
      return type == Type::whole || type == Type::text;
  }
  return false;
}

Error unknown_setting(const Setting& setting) {
  std::vector<std::string> known;
  for (const Option& option : options()) {
    if (option.in_job) known.push_back(long_name(option));
  }
  return Error{setting.source + ": unknown option " + in_quotes(setting.name) + " in [job]" +
               suggestion(setting.name, known)};
}

Status apply_setting(const Setting& setting, Asked& asked) {
  const Option* option = find_option(setting.name);
  const bool from_file = !setting.source.empty();
  if (option == nullptr) return unknown_setting(setting);
  if (from_file && !option->in_job) {
    return Error{setting.source + ": option " + in_quotes(setting.name) +
                 " cannot stand in [job]: expected it on the command line"};
  }
  const std::string place =
      from_file ? setting.source + ": " + setting.name : "--" + long_name(*option);
  if (from_file && !type_fits(option->takes, setting.type)) {
    return Error{place + " expects " + expectation(option->takes)};
  }
  if (!option->repeats && setting.values.size() != 1) {
    return Error{place + " expects one value, not a list"};
  }
  for (const std::string& value : setting.values) {
    if (option->takes == Takes::flag && value == "false") continue;
    if (const Status status = option->apply(asked, {value, place}); !status) return status;
  }
  return Ok{};
}

}  // namespace

std::span<const Option> options() {
  return kOptions;
}

std::vector<std::string> spellings(const Option& option) {
  std::vector<std::string> names;
  std::string_view rest = option.names;
  while (true) {
    const size_t comma = rest.find(',');
    names.emplace_back(rest.substr(0, comma));
    if (comma == std::string_view::npos) return names;
    rest.remove_prefix(comma + 1);
  }
}

std::string long_name(const Option& option) {
  for (const std::string& spelling : spellings(option)) {
    if (spelling.starts_with("--")) return spelling.substr(2);
  }
  HVD_CHECK(false);
}

const Option* find_option(std::string_view name) {
  for (const Option& option : options()) {
    for (const std::string& spelling : spellings(option)) {
      if (std::string_view(spelling).substr(spelling.starts_with("--") ? 2 : 1) == name) {
        return &option;
      }
    }
  }
  return nullptr;
}

Status apply_settings(const std::vector<Setting>& settings, Asked& asked) {
  for (const Setting& setting : settings) {
    if (const Status status = apply_setting(setting, asked); !status) return status;
  }
  return Ok{};
}

std::vector<Setting> override_settings(const std::vector<Setting>& lower,
                                       const std::vector<Setting>& upper) {
  std::vector<Setting> merged;
  const auto replaced = [&upper](const Setting& setting) {
    // Variables add up; the later of two with one name counts.
    const Option* option = find_option(setting.name);
    return option->apply != add_variable &&
           std::any_of(upper.begin(), upper.end(), [option](const Setting& other) {
             return find_option(other.name) == option;
           });
  };
  std::copy_if(lower.begin(), lower.end(), std::back_inserter(merged),
               [&replaced](const Setting& setting) { return !replaced(setting); });
  merged.insert(merged.end(), upper.begin(), upper.end());
  return merged;
}

}  // namespace hvd
