// Links over connected TCP sockets.
#pragma once

#include <poll.h>

#include <vector>

#include "base/fd.h"
#include "comm/agent_wire.h"
#include "comm/links.h"

namespace hvd {

class TcpLinks : public Links {
 public:
  // `sockets` by rank, non-blocking, this rank's own invalid. `agent` is asked about lost ranks
  // during every wait and must outlive the links.
  TcpLinks(uint32_t rank, std::vector<Fd> sockets, AgentWire& agent);

  Outcome send(uint32_t peer, std::span<const char> bytes, size_t& moved) override;
  Outcome receive(uint32_t peer, std::span<char> bytes, size_t& moved) override;
  Outcome wait(const std::vector<Want>& wants, std::optional<Time> deadline) override;
  Outcome check() override { return agent_.check(); }
  void flush(Time deadline) override;
  void close() override;

 private:
  Outcome lost(uint32_t peer, const std::string& why);
  Outcome look_at_closed(uint32_t peer);
  bool ended(int fd) const;
  bool said_farewell(int fd) const;

  std::vector<Fd> sockets_;
  std::vector<bool> left_;  // closed, with something still to be read
  AgentWire& agent_;
  std::vector<pollfd> polled_;
};

}  // namespace hvd
