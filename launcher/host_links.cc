#include "launcher/host_links.h"

#include <algorithm>
#include <utility>

#include "base/build_id.h"
#include "launcher/state_folder.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
constexpr Duration kDialPause = 1s;
}  // namespace

HostLinks::HostLinks(const Job& job, Poller& poller, uint64_t first_name, bool accept_new_host_keys)
    : job_(job),
      poller_(poller),
      first_name_(first_name),
      build_(own_build_id()),
      opener_(job, build_, accept_new_host_keys),
      entries_(job.hosts.size()) {}

void HostLinks::open(uint32_t host, bool take_over, std::vector<News>& news) {
  drop(host);
  Result<std::unique_ptr<Channel>> channel = opener_.open(host, take_over);
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
  hello.survive_ns = static_cast<uint64_t>(job_.survive.count());
  hello.launcher = own_name();
  hello.session = random_number();
  hello.attach = hello.take_over = take_over;
  BinarySource source;
  if (!spec.local) source = [this] { return binary(); };
  entries_[host].link = std::make_unique<AgentLink>(spec.name, build_, std::move(*channel), hello,
                                                    now() + job_.start_timeout, source);
  watch(host);
}

void HostLinks::drop(uint32_t host) {
  Entry& entry = entries_[host];
  if (entry.watched >= 0) poller_.forget(entry.watched);
  entry = Entry();
}

void HostLinks::dial_again(uint32_t host, Time now, std::vector<News>& news) {
  Entry& entry = entries_[host];
  if (entry.watched >= 0) poller_.forget(entry.watched);
  entry.watched = -1;
  entry.dial_at.reset();
  Result<std::unique_ptr<Channel>> channel = opener_.open(host, true);
  if (channel) {
    entry.link->go_on(std::move(*channel),
                      std::min(now + job_.start_timeout, entry.link->given_up_at()));
    return watch(host);
  }
  std::vector<AgentLink::News> said = {AgentLink::Down{HostEnd::lost, channel.error().text}};
  take(host, said, news);
}

// Whether the link stays all the same.
bool HostLinks::stays(uint32_t host, AgentLink::News& news) {
  Entry& entry = entries_[host];
  auto* down = std::get_if<AgentLink::Down>(&news);
  if (down == nullptr) {
    if (const auto* said = std::get_if<FromAgent>(&news); said && std::get_if<Held>(said)) {
      entry.broken = false;
    }
    return false;
  }
  if (!entry.link->may_go_on(*down)) return false;
  const Time at = now();
  if (at >= entry.link->given_up_at()) {
    down->end = HostEnd::silent;
    return false;
  }
  if (!std::exchange(entry.broken, true)) {
    broken_.push_back({host, down->reason});
    entry.dial_at = at;
  } else {
    entry.dial_at = at + kDialPause;
  }
  return true;
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
    if (link != nullptr && entries_[host].dial_at && *entries_[host].dial_at <= now) {
      dial_again(host, now, news);
      continue;
    }
    if (link == nullptr || !link->deadline() || *link->deadline() > now) continue;
    std::vector<AgentLink::News> said;
    link->judge(now, said);
    take(host, said, news);
  }
}

void HostLinks::take(uint32_t host, std::vector<AgentLink::News>& from, std::vector<News>& to) {
  for (AgentLink::News& one : from) {
    if (!stays(host, one)) to.push_back({host, std::move(one)});
  }
  watch(host);
}

std::optional<Time> HostLinks::deadline() const {
  std::optional<Time> next;
  for (const Entry& entry : entries_) {
    if (entry.link) next = earlier(earlier(next, entry.link->deadline()), entry.dial_at);
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
