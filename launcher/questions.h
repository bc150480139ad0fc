// What other terminals ask of a running job, and the answers of its hosts on their way to them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/message.h"
#include "base/time.h"
#include "launcher/control_socket.h"
#include "launcher/host_links.h"
#include "supervisor/job.h"

namespace hvd {

class Questions {
 public:
  // Both outlive this.
  Questions(const Job& job, HostLinks& links);

  int fd() const { return door_.fd(); }
  // Takes what was asked; `attempt` is the current one.
  void serve(uint32_t attempt, Time now);
  // True if a terminal had asked for these.
  bool take(uint32_t host, const StacksTaken& stacks);
  // It answers no more.
  void forget_host(uint32_t host);
  void act(Time now);
  std::optional<Time> deadline() const;

 private:
  struct Open {
    uint64_t caller = 0;
    std::set<uint32_t> hosts;                 // that did not answer yet
    std::map<uint32_t, std::string> answers;  // by rank
    Time until{};
  };
  using Opens = std::map<uint32_t, Open>;

  void ask_for_stacks(uint64_t caller, uint32_t attempt, Time now);
  Opens::iterator finish(Opens::iterator open);

  const Job& job_;
  HostLinks& links_;
  ControlSocket door_;
  Opens open_;  // by number of the request
  uint32_t next_request_;
};

// How a rank's stack is told.
std::string told_stack(const RankStack& stack, const std::string& host);

}  // namespace hvd
