#include "launcher/open_channel.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "launcher/bootstrap.h"
#include "launcher/command_channel.h"
#include "launcher/local_channel.h"
#include "launcher/openssh.h"
#include "launcher/rsh.h"
#include "launcher/ssh_channel.h"

namespace hvd {

namespace {

constexpr std::pair<const char*, Transport> kTransports[] = {
    {"auto", Transport::automatic},
    {"libssh", Transport::libssh},
    {"openssh", Transport::openssh},
    {"local", Transport::local},
};

std::string login_name() {
  const passwd* entry = getpwuid(getuid());
  return entry == nullptr ? "root" : entry->pw_name;
}

SshTarget ssh_target(const Job& job, const Host& host, bool accept_new_host_keys) {
  SshTarget target;
  target.label = host.name;
  target.address = host.address.empty() ? host.name : host.address;
  target.port = host.port;
  target.user = host.user;
  target.identity = host.identity;
  target.accept_new_host_keys = accept_new_host_keys;
  target.deadline = now() + job.start_timeout;
  return target;
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

Result<std::unique_ptr<Channel>> open_channel(const Job& job, uint32_t host,
                                              const std::string& build, bool accept_new_host_keys) {
  const Host& spec = job.hosts[host];
  const std::string arguments = "--job " + job.id + " --host " + std::to_string(host);
  if (spec.local) {
    return start_local_channel(
        spec.name, "/proc/self/exe",
        {"hvdlaunch", "agent", "--job", job.id, "--host", std::to_string(host)});
  }
  const std::string bootstrap = bootstrap_command(build, arguments);
  if (!job.rsh.empty()) {
    std::vector<std::string> argv = fill_rsh(job.rsh, spec, login_name());
    for (std::string& word : remote_words(bootstrap)) argv.push_back(std::move(word));
    return start_command_channel({spec.name, std::move(argv), std::nullopt});
  }
  SshTarget target = ssh_target(job, spec, accept_new_host_keys);
  target.command = bootstrap;
  if (job.transport == Transport::openssh) {
    return start_command_channel({spec.name, openssh_argv(target), kOpensshLost});
  }
  return std::unique_ptr<Channel>(std::make_unique<SshChannel>(std::move(target)));
}

}  // namespace hvd
