// Which channel reaches a host: the one place where that is decided.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "launcher/channel.h"
#include "supervisor/job.h"

namespace hvd {

// By the names that --transport takes: "auto", "libssh", "openssh", "local".
std::optional<Transport> transport_of(std::string_view name);
std::string transport_name(Transport transport);
std::vector<std::string> transport_names();

// Starts the way to an agent of `build` on one host of the job. The error is a sentence that names
// the host.
Result<std::unique_ptr<Channel>> open_channel(const Job& job, uint32_t host,
                                              const std::string& build, bool accept_new_host_keys);

}  // namespace hvd
