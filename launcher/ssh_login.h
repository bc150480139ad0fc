// The two decisions of an SSH connection: is this the host it claims to be, and are we let in. For
// dialling threads; nothing here ever asks a person.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/ssh_link.h"
#include "launcher/ssh_plan.h"
#include "launcher/ssh_target.h"

namespace hvd {

// Why an attempt to reach a host failed.
struct Trouble {
  std::string text;        // a sentence that names the host; empty: given up, no time or cancelled
  bool transient = false;  // another try may go better
  bool openssh = false;    // the program ssh may do better
};
using Attempted = std::optional<Trouble>;

// Where the connection leads, for sentences and for commands that users can type.
struct Endpoint {
  std::string name;   // as looked up in known_hosts
  std::string where;  // "10.0.0.1 port 22"
  unsigned port = 22;
  bool by_name_alone = false;  // known_hosts has no entry for the port
};

// Waits until the link's socket allows progress; false: give up.
using LinkWait = std::function<bool()>;

// Calls a libssh function until its answer is not `again`; none when given up. libssh goes on
// saying "again" after a disconnect; here that is SSH_ERROR (as SSH_AUTH_ERROR is).
template <class Call>
std::optional<int> repeat(int again, SshLink& link, const LinkWait& wait, Call call) {
  while (true) {
    const int rc = call();
    if (rc != again) return rc;
    if (link.broken()) return SSH_ERROR;
    if (!wait()) return std::nullopt;
  }
}

// After the key exchange: only a key that known_hosts holds passes, or an unknown one under
// accept_new_host_keys, which is then recorded.
Attempted check_host_key(SshLink& link, const SshTarget& target, const Endpoint& endpoint);

// Tries the target's key file, then the keys of the ssh-agent, then the plan's key files. Nothing
// is written, not even a .pub file that a key lacks.
Attempted log_in(SshLink& link, const SshTarget& target, const SshPlan& plan,
                 const Endpoint& endpoint, const LinkWait& wait);

}  // namespace hvd
