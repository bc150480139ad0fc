#include "launcher/host_links.h"

#include <algorithm>
#include <utility>

#include "base/build_id.h"

namespace hvd {

HostLinks::HostLinks(const Job& job, Poller& poller, uint64_t first_name, bool accept_new_host_keys)
    : job_(job),
      poller_(poller),
      first_name_(first_name),
      build_(own_build_id()),
      opener_(job, build_, accept_new_host_keys),
      entries_(job.hosts.size()) {}

void HostLinks::open(uint32_t host, std::vector<News>& news) {
  drop(host);
  Result<std::unique_ptr<Channel>> channel = opener_.open(host);
  if (!channel) {
    news.push_back({host, AgentLink::Down{HostEnd::refused, channel.error().text}});
    return;
  }
  const Host& spec = job_.hosts[host];
  LauncherHello hello;
  hello.job = job_.id;
  hello.host_name = spec.name;
  hello.silence_ns = static_cast<uint64_t>(job_.silence.count());
  hello.failure_grace_ns = static_cast<uint64_t>(job_.failure_grace.count());
  BinarySource source;
  if (!spec.local) source = [this] { return binary(); };
  entries_[host].link = std::make_unique<AgentLink>(spec.name, build_, std::move(*channel), hello,
                                                    now() + job_.start_timeout, source);
  watch(host);
}

void HostLinks::drop(uint32_t host) {
  Entry& entry = entries_[host];
  if (entry.watched >= 0) poller_.forget(entry.watched);
  entry.watched = -1;
  entry.link.reset();
}

void HostLinks::send(uint32_t host, const ToAgent& message) {
  if (!entries_[host].link) return;
  entries_[host].link->send(message);
  watch(host);
}

void HostLinks::serve(uint32_t host, Time now, std::vector<News>& news) {
  if (!entries_[host].link) return;
  std::vector<AgentLink::News> said;
  entries_[host].link->advance(now, said);
  take(host, said, news);
}

void HostLinks::judge(Time now, std::vector<News>& news) {
  for (uint32_t host = 0; host < count(); ++host) {
    AgentLink* link = find(host);
    if (link == nullptr || !link->deadline() || *link->deadline() > now) continue;
    std::vector<AgentLink::News> said;
    link->judge(now, said);
    take(host, said, news);
  }
}

void HostLinks::take(uint32_t host, std::vector<AgentLink::News>& from, std::vector<News>& to) {
  for (AgentLink::News& one : from) to.push_back({host, std::move(one)});
  watch(host);
}

std::optional<Time> HostLinks::deadline() const {
  std::optional<Time> next;
  for (const Entry& entry : entries_) {
    if (entry.link) next = earlier(next, entry.link->deadline());
  }
  return next;
}

bool HostLinks::any() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.link != nullptr; });
}

void HostLinks::watch(uint32_t host) {
  Entry& entry = entries_[host];
  const bool over = !entry.link || entry.link->down();
  const int fd = over ? -1 : entry.link->channel().fd();
  if (entry.watched >= 0 && entry.watched != fd) poller_.forget(entry.watched);
  entry.watched = fd;
  if (fd >= 0) poller_.watch(fd, first_name_ + host, entry.link->channel().interest());
}

Result<const AgentBinary*> HostLinks::binary() {
  if (!binary_) {
    Result<AgentBinary> read = read_own_binary();
    if (!read) return read.error();
    binary_ = std::move(*read);
  }
  return &*binary_;
}

}  // namespace hvd
