// The OpenSSH client as the way to a host: for what libssh cannot do, or when it is asked for.
#pragma once

#include <string>
#include <vector>

#include "launcher/ssh_target.h"

namespace hvd {

// ssh's exit code when it could not connect or lost the connection.
inline constexpr int kOpensshLost = 255;

// The command line of ssh that runs the target's command: never a prompt, host keys strict, and
// host and command behind `--`, where nothing is taken for an option.
std::vector<std::string> openssh_argv(const SshTarget& target);

}  // namespace hvd
