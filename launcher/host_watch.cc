#include "launcher/host_watch.h"

#include <algorithm>
#include <utility>

#include "launcher/host_spec.h"
#include "launcher/hosts.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
constexpr Duration kSayAgain = 1min;
}  // namespace

void settle_discovered(const Job& job, std::vector<Host>& hosts) {
  mark_local(hosts, this_machine());
  for (Host& host : hosts) {
    if (job.transport == Transport::local) host.local = true;
    if (host.identity.empty() && !host.local) host.identity = job.identity;
    if (host.port == 0 && !host.local) host.port = job.ssh_port;
    if (job.slots_per_host > 0) host.slots = job.slots_per_host;
    if (host.max_slots > 0) host.slots = std::min(host.slots, host.max_slots);
  }
}

HostWatch::HostWatch(Job& job, Time now)
    : job_(job), discovery_(job.discovery, now), list_(job.hosts) {}

std::optional<HostsListed> HostWatch::advance(Time now) {
  if (auto found = discovery_.advance(now)) {
    if (*found) {
      settle_discovered(job_, **found);
      list_.see(**found, now);
    } else if (told_ != found->error().text || now - told_at_ >= kSayAgain) {
      told_ = found->error().text;
      told_at_ = now;
      trouble_ = told_ + "; the hosts stay those that it named before";
    }
  }
  const HostList::Change change = list_.settle(now);
  if (change.come.empty() && change.gone.empty()) return std::nullopt;
  HostsListed listed;
  for (const Host& host : change.come) listed.come.push_back(index_of(host));
  for (const Host& host : change.gone) listed.gone.push_back(index_of(host));
  return listed;
}

// By name and port, in the job's list; a new one at its end.
uint32_t HostWatch::index_of(const Host& host) {
  const std::string identity = host_identity(host.name, host.port);
  for (uint32_t index = 0; index < job_.hosts.size(); ++index) {
    const Host& known = job_.hosts[index];
    if (host_identity(known.name, known.port) == identity) return index;
  }
  job_.hosts.push_back(host);
  job_.hosts.back().spare = true;
  return static_cast<uint32_t>(job_.hosts.size() - 1);
}

}  // namespace hvd
