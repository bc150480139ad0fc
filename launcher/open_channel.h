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

// By the names that --transport takes: "auto", "libssh", "openssh", "slurm", "local".
std::optional<Transport> transport_of(std::string_view name);
std::string transport_name(Transport transport);
std::vector<std::string> transport_names();

class SshLookup;

class ChannelOpener {
 public:
  // The job outlives this. `build` is that of the agents.
  ChannelOpener(const Job& job, std::string build, bool accept_new_host_keys);

  // Starts the way to an agent of one host of the job; with `attach` to the one that runs there.
  // The error is a sentence that names the host.
  Result<std::unique_ptr<Channel>> open(uint32_t host, bool attach) const;

 private:
  Status check_open_files() const;
  Result<std::unique_ptr<Channel>> open_rsh(const Host& host, const std::string& command) const;
  Result<std::unique_ptr<Channel>> open_srun(const Host& host, const std::string& command) const;
  Result<std::unique_ptr<Channel>> open_ssh(const Host& host, const std::string& command) const;

  const Job& job_;
  const std::string build_;
  const bool accept_new_host_keys_;
  const uint64_t file_limit_;  // the limit before it was raised
  const std::shared_ptr<SshLookup> lookup_;
};

}  // namespace hvd
