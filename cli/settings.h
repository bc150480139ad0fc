// Every option there is, and what a value of it means. The command line and [job] tables are read
// by the same rules; the usage text is made of the same table.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "cli/env_file.h"
#include "launcher/host_choice.h"
#include "launcher/hosts.h"
#include "launcher/launch.h"

namespace hvd {

// What was asked for; what nobody asked for is absent.
struct Asked {
  std::optional<uint32_t> size;
  std::string size_source;  // "--np" or "hosts.toml:9:1: np"
  std::optional<uint32_t> slots_per_host;
  bool oversubscribe = false;
  std::vector<std::string> host_words;  // of -H
  std::vector<std::string> host_files;
  std::vector<HostChoice> include, exclude;
  std::optional<std::string> discovery;
  std::optional<uint16_t> ssh_port;
  std::optional<std::string> identity;
  std::optional<Transport> transport;
  std::vector<std::string> rsh;                     // --rsh in words
  bool transport_typed = false, rsh_typed = false;  // on the command line
  std::optional<std::string> directory;
  std::vector<VariableWord> variables;
  std::vector<VariableWord> file_variables;  // of --env-file; those of -x win
  std::optional<uint32_t> input_rank;
  bool substitute = false;
  std::optional<uint32_t> gpus_per_rank;
  std::optional<Binding> binding;
  std::optional<uint32_t> max_restarts, max_host_failures;
  std::vector<Rule> rules;
  std::optional<std::string> checkpoint_dir, checkpoint_every;
  std::optional<uint32_t> checkpoint_keep;
  std::optional<Duration> grace, failure_grace, wall_time, start_timeout, silence, stall_timeout,
      survive;
  std::optional<StallAction> stall_action;
  LaunchSettings settings;
  bool no_prefix = false;
  bool dry_run = false;
  bool detach = false;
  bool print_env = false;
};

// One value on its way into Asked.
struct OptionValue {
  std::string text;
  std::string place;  // "--np" or "hosts.toml:9:1: np": begins every error about it
};

struct Option {
  enum class Takes { flag, whole, duration, text, whole_or_text };
  const char* names;  // "-n,--np,--num-proc"; the first long one is its name
  const char* value;  // as the usage text shows it; empty for a flag
  const char* group;  // empty: not in the usage text
  const char* help;
  Takes takes;
  bool repeats;  // each time adds to the one before; else the last one counts
  bool in_job;   // may stand in a [job] table
  Status (*apply)(Asked& asked, const OptionValue& value);
};

std::span<const Option> options();

// "np"
std::string long_name(const Option& option);
// All spellings with dashes: "-n", "--np", "--num-proc".
std::vector<std::string> spellings(const Option& option);
// By a spelling without dashes, or null.
const Option* find_option(std::string_view name);

// Puts the settings into `asked`. Of a type or value that does not fit the error says what was
// expected, and where it stands.
Status apply_settings(const std::vector<Setting>& settings, Asked& asked);

// The lower settings without those that the upper ones replace, then the upper ones.
std::vector<Setting> override_settings(const std::vector<Setting>& lower,
                                       const std::vector<Setting>& upper);

// What --help prints.
std::string usage_text();

}  // namespace hvd
