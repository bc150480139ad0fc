#include "launcher/openssh.h"

#include <algorithm>

namespace hvd {

namespace {

void add_option(std::vector<std::string>& argv, const std::string& option) {
  argv.insert(argv.end(), {"-o", option});
}

}  // namespace

std::vector<std::string> openssh_argv(const SshTarget& target) {
  std::vector<std::string> argv = {"ssh", "-T"};
  if (!target.config.empty()) argv.insert(argv.end(), {"-F", target.config});
  const int limit = static_cast<int>(seconds(target.deadline - now()));
  add_option(argv, "BatchMode=yes");
  add_option(argv, std::string("StrictHostKeyChecking=") +
                       (target.accept_new_host_keys ? "accept-new" : "yes"));
  add_option(argv, "ConnectTimeout=" + std::to_string(std::max(limit, 1)));
  add_option(argv, "LogLevel=ERROR");
  add_option(argv, "ClearAllForwardings=yes");
  add_option(argv, "RemoteCommand=none");
  // A connection that is there already may be used, but nobody else may come to depend on ours.
  add_option(argv, "ControlMaster=no");
  if (!target.known_hosts.empty()) {
    add_option(argv, "UserKnownHostsFile=" + target.known_hosts);
    add_option(argv, "GlobalKnownHostsFile=/dev/null");
  }
  if (target.port != 0) argv.insert(argv.end(), {"-p", std::to_string(target.port)});
  if (!target.user.empty()) argv.insert(argv.end(), {"-l", target.user});
  if (!target.identity.empty()) argv.insert(argv.end(), {"-i", target.identity});
  argv.insert(argv.end(), {"--", target.address, target.command});
  return argv;
}

}  // namespace hvd
