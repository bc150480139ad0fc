// The OpenSSH client as the way to a host: for what libssh cannot do, or when it is asked for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/ssh_target.h"

namespace hvd {

// ssh's exit code when it could not connect or lost the connection.
inline constexpr int kOpensshLost = 255;

// Whether what ssh said on its way out, with this exit code, may pass: the host has no name or no
// sshd yet, or its sshd is flooded. A name that does not exist may not any more when it is `late`.
bool openssh_may_recover(int exit_code, std::string_view said, bool late);

// What a user can do about it, for the end of a sentence; mostly nothing.
std::string openssh_hint(std::string_view said);

// The command line of ssh that runs the target's command: never a prompt, host keys strict, and
// host and command behind `--`, where nothing is taken for an option.
std::vector<std::string> openssh_argv(const SshTarget& target);

}  // namespace hvd
