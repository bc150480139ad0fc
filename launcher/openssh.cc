#include "launcher/openssh.h"

#include <algorithm>

namespace hvd {

namespace {

void add_option(std::vector<std::string>& argv, const std::string& option) {
  argv.insert(argv.end(), {"-o", option});
}

}  // namespace

bool openssh_may_recover(int exit_code, std::string_view said, bool late) {
  static constexpr std::string_view kFinal[] = {"Permission denied", "Host key verification failed",
                                                "Too many authentication failures"};
  static constexpr std::string_view kPassing[] = {
      "Could not resolve hostname", "Connection refused",     "Connection timed out",
      "No route to host",           "Network is unreachable", "Connection reset",
      "Connection closed by",       "banner exchange",        "kex_exchange_identification"};
  const auto names = [said](std::string_view text) { return said.find(text) != said.npos; };
  if (late && names("Could not resolve hostname") && names("not known")) return false;
  return exit_code == kOpensshLost && std::none_of(std::begin(kFinal), std::end(kFinal), names) &&
         std::any_of(std::begin(kPassing), std::end(kPassing), names);
}

// ssh gives the hosts it jumps through no option of ours. Where new keys are taken, the target's
// own key is a reason only when it has changed.
std::string openssh_hint(std::string_view said) {
  const auto names = [said](std::string_view text) { return said.find(text) != said.npos; };
  if (!names("Host key verification failed") || names("HAS CHANGED")) return "";
  return "; --accept-new-host-keys does not reach what ssh jumps through: log in there once, or "
         "write StrictHostKeyChecking accept-new into the ssh configuration";
}

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
