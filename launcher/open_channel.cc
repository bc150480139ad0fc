#include "launcher/open_channel.h"

#include <pwd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/process.h"
#include "launcher/bootstrap.h"
#include "launcher/command_channel.h"
#include "launcher/local_channel.h"
#include "launcher/rsh.h"
#include "launcher/slurm.h"
#include "launcher/ssh_channel.h"
#include "launcher/ssh_lookup.h"
#include "launcher/ssh_route.h"

namespace hvd {

namespace {

constexpr std::pair<const char*, Transport> kTransports[] = {
    {"auto", Transport::automatic}, {"libssh", Transport::libssh}, {"openssh", Transport::openssh},
    {"slurm", Transport::slurm},    {"local", Transport::local},
};

// A way to a host holds at most so many files, and the launcher itself so many.
constexpr uint64_t kFilesPerHost = 6;
constexpr uint64_t kOwnFiles = 32;

std::string login_name() {
  const passwd* entry = getpwuid(getuid());
  return entry == nullptr ? "root" : entry->pw_name;
}

}  // namespace

std::optional<Transport> transport_of(std::string_view name) {
  for (const auto& [known, transport] : kTransports) {
    if (name == known) return transport;
  }
  return std::nullopt;
}

std::string transport_name(Transport transport) {
  for (const auto& [name, known] : kTransports) {
    if (transport == known) return name;
  }
  HVD_CHECK(false);
}

std::vector<std::string> transport_names() {
  std::vector<std::string> names;
  for (const auto& entry : kTransports) names.emplace_back(entry.first);
  return names;
}

ChannelOpener::ChannelOpener(const Job& job, std::string build, bool accept_new_host_keys)
    : job_(job),
      build_(std::move(build)),
      accept_new_host_keys_(accept_new_host_keys),
      file_limit_(raise_file_limit()),
      lookup_(std::make_shared<SshLookup>()) {}

Result<std::unique_ptr<Channel>> ChannelOpener::open(uint32_t host, bool attach) const {
  const Host& spec = job_.hosts[host];
  const std::string number = std::to_string(host);
  if (const Status status = check_open_files(); !status) return status.error();
  if (spec.local) {
    std::vector<std::string> words = {"hvdlaunch", "agent", "--job", job_.id, "--host", number};
    if (attach) words.emplace_back("--attach");
    return start_local_channel(spec.name, "/proc/self/exe", words, file_limit_);
  }
  const std::string command = bootstrap_command(
      build_, "--job " + job_.id + " --host " + number + (attach ? " --attach" : ""));
  if (!job_.allocation.empty()) return open_srun(spec, command);
  return job_.rsh.empty() ? open_ssh(spec, command) : open_rsh(spec, command);
}

// Said before there is trouble of a kind that no sentence can explain.
Status ChannelOpener::check_open_files() const {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  const uint64_t needed = kOwnFiles + job_.hosts.size() * kFilesPerHost;
  if (limit.rlim_cur >= needed) return Ok{};
  return Error{std::to_string(job_.hosts.size()) + " hosts take " + std::to_string(needed) +
               " open files, and this process may have " + std::to_string(limit.rlim_cur) +
               ": raise the limit with ulimit -n"};
}

Result<std::unique_ptr<Channel>> ChannelOpener::open_rsh(const Host& host,
                                                         const std::string& command) const {
  ChannelCommand program;
  program.label = host.name;
  program.file_limit = file_limit_;
  program.argv = fill_rsh(job_.rsh, host, login_name());
  for (std::string& word : remote_words(command)) program.argv.push_back(std::move(word));
  return start_command_channel(std::move(program));
}

Result<std::unique_ptr<Channel>> ChannelOpener::open_srun(const Host& host,
                                                          const std::string& command) const {
  ChannelCommand program;
  program.label = host.name;
  program.file_limit = file_limit_;
  program.argv = srun_argv(job_.allocation, host);
  program.passes = srun_sees;
  for (std::string& word : remote_words(command)) program.argv.push_back(std::move(word));
  return start_command_channel(std::move(program));
}

Result<std::unique_ptr<Channel>> ChannelOpener::open_ssh(const Host& host,
                                                         const std::string& command) const {
  SshTarget target;
  target.label = host.name;
  target.address = host.address.empty() ? host.name : host.address;
  target.port = host.port;
  target.user = host.user;
  target.identity = host.identity;
  target.accept_new_host_keys = accept_new_host_keys_;
  target.command = command;
  target.deadline = now() + job_.start_timeout;
  target.lookup = lookup_;
  switch (job_.transport) {
    case Transport::libssh:
      return std::unique_ptr<Channel>(std::make_unique<SshChannel>(std::move(target)));
    case Transport::openssh: {
      auto channel = start_openssh_channel(target);
      if (channel) return channel;
      return Error{"cannot reach " + host.name + ": " + channel.error().text};
    }
    case Transport::automatic:
    case Transport::slurm:
    case Transport::local:
      break;
  }
  return start_ssh_route(std::move(target));
}

}  // namespace hvd
