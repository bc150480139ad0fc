#include "launcher/survey.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/build_id.h"
#include "base/poller.h"
#include "launcher/agent_link.h"
#include "launcher/open_channel.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

// For agents to take their leave; after that their channels are closed on them.
constexpr Duration kFarewell = 2s;

class Survey {
 public:
  Survey(const Job& job, const std::vector<uint32_t>& hosts, bool accept_new_host_keys)
      : job_(job),
        build_(own_build_id()),
        opener_(job, build_, accept_new_host_keys),
        asked_(hosts.size()) {
    for (size_t i = 0; i < hosts.size(); ++i) ask(asked_[i], hosts[i]);
  }

  Result<std::vector<AgentHello>> run() {
    while (waiting()) turn(std::nullopt);
    const Time leave = now() + kFarewell;
    for (Asked& one : asked_) {
      if (one.link && one.link->up()) one.link->send(Goodbye{0});
    }
    while (connected() && now() < leave) turn(leave);
    return result();
  }

 private:
  struct Asked {
    std::unique_ptr<AgentLink> link;
    std::optional<AgentHello> hello;
    std::string error;
    int watched = -1;
  };

  void ask(Asked& one, uint32_t host) {
    Result<std::unique_ptr<Channel>> channel = opener_.open(host);
    if (!channel) {
      one.error = channel.error().text;
      return;
    }
    LauncherHello hello;
    hello.job = job_.id;
    hello.host_name = job_.hosts[host].name;
    hello.silence_ns = static_cast<uint64_t>(job_.silence.count());
    one.link =
        std::make_unique<AgentLink>(job_.hosts[host].name, build_, std::move(*channel), hello,
                                    now() + job_.start_timeout, [this] { return binary_of(); });
  }

  Result<const AgentBinary*> binary_of() {
    if (!binary_) {
      Result<AgentBinary> read = read_own_binary();
      if (!read) return read.error();
      binary_ = std::move(*read);
    }
    return &*binary_;
  }

  bool connected() const {
    for (const Asked& one : asked_) {
      if (one.link) return true;
    }
    return false;
  }
  bool waiting() const {
    for (const Asked& one : asked_) {
      if (one.link && !one.hello) return true;
    }
    return false;
  }

  void turn(std::optional<Time> deadline) {
    for (size_t i = 0; i < asked_.size(); ++i) {
      watch(asked_[i], i);
      if (asked_[i].link) deadline = earlier(deadline, asked_[i].link->deadline());
    }
    for (const Ready& ready : poller_.wait(deadline)) {
      Asked& one = asked_[ready.id];
      std::vector<AgentLink::News> news;
      if (one.link) one.link->advance(now(), news);
      take(one, news);
    }
    for (Asked& one : asked_) {
      if (!one.link || !one.link->deadline() || *one.link->deadline() > now()) continue;
      std::vector<AgentLink::News> news;
      one.link->judge(now(), news);
      take(one, news);
    }
  }

  void watch(Asked& one, uint64_t name) {
    const int fd = one.link ? one.link->channel().fd() : -1;
    if (one.watched >= 0 && one.watched != fd) poller_.forget(one.watched);
    one.watched = fd;
    if (fd >= 0) poller_.watch(fd, name, one.link->channel().interest());
  }

  void take(Asked& one, std::vector<AgentLink::News>& news) {
    for (AgentLink::News& item : news) {
      if (const auto* down = std::get_if<AgentLink::Down>(&item)) {
        if (!one.hello) one.error = down->reason;
        if (one.watched >= 0) poller_.forget(one.watched);
        one.watched = -1;
        one.link.reset();
        return;
      }
      if (const auto* hello = std::get_if<AgentHello>(&std::get<FromAgent>(item)))
        one.hello = *hello;
    }
  }

  Result<std::vector<AgentHello>> result() {
    std::vector<AgentHello> told;
    std::string errors;
    for (Asked& one : asked_) {
      if (one.hello) {
        told.push_back(std::move(*one.hello));
      } else {
        errors += (errors.empty() ? "" : "\n") + one.error;
      }
    }
    if (!errors.empty()) return Error{errors};
    return told;
  }

  const Job& job_;
  const std::string build_;
  const ChannelOpener opener_;
  Poller poller_;
  std::optional<AgentBinary> binary_;
  std::vector<Asked> asked_;
};

}  // namespace

Result<std::vector<AgentHello>> survey(const Job& job, const std::vector<uint32_t>& hosts,
                                       bool accept_new_host_keys) {
  return Survey(job, hosts, accept_new_host_keys).run();
}

}  // namespace hvd
