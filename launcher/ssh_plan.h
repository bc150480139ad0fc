// What the ssh configuration means for one connection: the answer of `ssh -G`, sorted into what
// libssh is to be told and what only the OpenSSH client can do. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/ssh_target.h"

namespace hvd {

// What the answer leaves open.
struct SshAccount {
  std::string home;         // of the user who launches
  std::string user;         // likewise
  std::string host_name;    // of this machine
  bool has_ticket = false;  // a Kerberos ticket cache is there
};

struct SshPlan {
  std::string host_name;  // to connect to
  int port = 22;
  std::string user;
  std::vector<std::string> identities;  // key files in the order to offer them
  bool identities_only = false;         // no other keys of the ssh-agent
  std::string identity_agent;           // its socket; empty: SSH_AUTH_SOCK; "none"
  // Files of host keys. The first one takes new keys.
  std::vector<std::string> known_hosts;
  std::string known_as;  // the name to look for in them, if it is another one
  // As ssh_options_set takes them; empty: libssh's own.
  std::string host_key_algorithms, ciphers, macs, key_exchanges, public_key_algorithms;
  int family = 0;  // AF_INET, AF_INET6, or 0 for both
  std::string bind_address;
  Duration connect_limit{};  // of one try; 0: none
  // The directive that libssh cannot honour, as "ProxyJump gate"; empty: there is none.
  std::string beyond;
};

// `answer` has lines of a keyword and its value, as `ssh -G` prints them; of a keyword given twice
// the first counts. Empty: what OpenSSH does without any configuration.
SshPlan ssh_plan(std::string_view answer, const SshTarget& target, const SshAccount& account);

}  // namespace hvd
