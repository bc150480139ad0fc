// A channel over SSH by whichever client can do it: libssh, which costs a hundredth of a process;
// then the program ssh, where the configuration asks for what libssh cannot do or where libssh was
// refused at the login (hosts and keys of certificates, security keys, host-based logins, a master
// connection that is there already).
#pragma once

#include <memory>

#include "base/error.h"
#include "launcher/channel.h"
#include "launcher/ssh_target.h"

namespace hvd {

// If there is no program ssh, what libssh says is final.
std::unique_ptr<Channel> start_ssh_route(SshTarget target);

// The program ssh alone. The error: it is not there.
Result<std::unique_ptr<Channel>> start_openssh_channel(const SshTarget& target);

}  // namespace hvd
