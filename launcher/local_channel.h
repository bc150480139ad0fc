// The channel to an agent on this machine: a child process at the other end of a socketpair.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/channel.h"

namespace hvd {

// Starts `program` with `arguments` (argv[0] included) in a session of its own, its stdin and
// stdout one socket, its stderr ours. The environment is ours, and so is the limit of open files
// unless another is given.
Result<std::unique_ptr<Channel>> start_local_channel(const std::string& label,
                                                     const std::string& program,
                                                     const std::vector<std::string>& arguments,
                                                     uint64_t file_limit = 0);

}  // namespace hvd
