// The links to the agents of a job's hosts, and their descriptors in a poller: opened, served,
// judged and dropped together. The owner has the loop. A link of a job that survives its launcher
// is dialled again when its connection breaks, until its agent must have stopped its ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/poller.h"
#include "launcher/agent_link.h"
#include "launcher/open_channel.h"
#include "supervisor/job.h"

namespace hvd {

class HostLinks {
 public:
  // What one host's link became or said; after AgentLink::Down there is nothing more of it, and
  // the owner drops it.
  struct News {
    uint32_t host = 0;
    AgentLink::News what;
  };
  // The connection to a host broke, and is dialled again.
  struct Broken {
    uint32_t host = 0;
    std::string reason;
  };

  // Job and poller outlive this. The poller's names of hosts count from `first_name`, by index.
  HostLinks(const Job& job, Poller& poller, uint64_t first_name, bool accept_new_host_keys);

  // The job has more hosts than before.
  void grow() { entries_.resize(job_.hosts.size()); }
  // Starts the way to a host, in place of one that was there. A way that cannot even be started is
  // news. With `take_over` it leads to the agent that runs there, whoever it heard before.
  void open(uint32_t host, bool take_over, std::vector<News>& news);
  void drop(uint32_t host);
  // Nothing is sent where no link is.
  void send(uint32_t host, const ToAgent& message);

  // The poller named this host.
  void serve(uint32_t host, Time now, std::vector<News>& news);
  // Ends links whose limit has passed; by deadline() at the latest.
  void judge(Time now, std::vector<News>& news);
  std::optional<Time> deadline() const;

  std::vector<Broken> take_broken() { return std::exchange(broken_, {}); }

  uint32_t count() const { return static_cast<uint32_t>(entries_.size()); }
  // Null: no link.
  AgentLink* find(uint32_t host) { return entries_[host].link.get(); }
  bool up(uint32_t host) const { return entries_[host].link && entries_[host].link->up(); }
  bool any() const;
  // Its connection is dialled again.
  bool is_broken(uint32_t host) const { return entries_[host].broken; }

 private:
  struct Entry {
    std::unique_ptr<AgentLink> link;
    int watched = -1;  // descriptor of the link that the poller has
    bool broken = false;
    std::optional<Time> dial_at;  // then: when it is dialled again
  };

  void watch(uint32_t host);
  void dial_again(uint32_t host, Time now, std::vector<News>& news);
  bool stays(uint32_t host, AgentLink::News& news);
  void take(uint32_t host, std::vector<AgentLink::News>& from, std::vector<News>& to);
  Result<const AgentBinary*> binary();

  const Job& job_;
  Poller& poller_;
  const uint64_t first_name_;
  const std::string build_;
  const ChannelOpener opener_;
  std::optional<AgentBinary> binary_;
  std::vector<Entry> entries_;
  std::vector<Broken> broken_;
};

}  // namespace hvd
