// The links of one rank to all others: reliable byte streams, one per peer, moved without waiting.
// Two kinds exist: TCP (tcp_links.h), and memory, with which the tests run ranks as threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/time.h"
#include "comm/outcome.h"

namespace hvd {

// What the caller of Links::wait would do next on one link.
struct Want {
  uint32_t peer = 0;
  bool send = false, receive = false;
};

class Links {
 public:
  Links(uint32_t rank, uint32_t size) : rank_(rank), size_(size) {}
  virtual ~Links() = default;
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }

  // Moves as many bytes as go at once; `moved` is 0 when none do. Fails when the peer is gone.
  virtual Outcome send(uint32_t peer, std::span<const char> bytes, size_t& moved) = 0;
  virtual Outcome receive(uint32_t peer, std::span<char> bytes, size_t& moved) = 0;

  // Returns when one of `wants` may go on, or at the deadline, or for no reason. Fails as soon as
  // any rank is gone, wanted or not.
  virtual Outcome wait(const std::vector<Want>& wants, std::optional<Time> deadline) = 0;

  // Takes in news of lost ranks without waiting.
  virtual Outcome check() = 0;

  // Gives what was sent until `deadline` to leave; what comes in is thrown away.
  virtual void flush(Time deadline) = 0;

  // Breaks all links, so that no peer waits for this rank any more.
  virtual void close() = 0;

 private:
  uint32_t rank_, size_;
};

}  // namespace hvd
