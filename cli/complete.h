// From what was asked for to a complete Job: hosts, slots, ranks, paths, variables. Inside the cli
// room; options.h is the door.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace hvd {

// The hosts of -H and --hostfile, and what the [job] tables of host files say.
struct HostsAndSettings {
  std::vector<Host> hosts;
  std::vector<Setting> job;
  std::vector<std::string> notices;
};
Result<HostsAndSettings> read_hosts(const std::vector<std::string>& words,
                                    const std::vector<std::string>& files);

// Fills what `job` lacks, which is a new one or a saved one, and replaces what was asked for.
// `hosts` and `argv` are empty if none were given.
Result<RunCommand> complete(Job job, const Asked& asked, std::vector<Host> hosts,
                            const std::vector<std::string>& argv, const Surroundings& surroundings);

// `path` as seen from `directory`, without "." and "..".
std::string absolute_path(const std::string& path, const std::string& directory);

}  // namespace hvd
