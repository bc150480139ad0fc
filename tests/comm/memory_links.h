// Links in memory, for ranks that are threads of one test. Each direction of each pair holds at
// most `capacity` bytes, so that transfers go in pieces, as over a network.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/links.h"

namespace hvd {

class MemoryNet {
 public:
  MemoryNet(uint32_t size, size_t capacity);

  uint32_t size() const { return size_; }
  std::unique_ptr<Links> links(uint32_t rank);

  // From now on every wait of every rank fails with this, as if the agents had told.
  void tell(const Outcome& news);

 private:
  friend class MemoryLinks;
  struct Pipe {
    std::deque<char> bytes;
    bool closed = false;
  };
  Pipe& pipe(uint32_t from, uint32_t to) { return pipes_[from * size_ + to]; }

  uint32_t size_;
  size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Pipe> pipes_;
  Outcome news_;
};

// Runs `body` once per rank, each in a thread of its own, and gives what each returned.
std::vector<Outcome> run_ranks(MemoryNet& net,
                               const std::function<Outcome(uint32_t rank, Links& links)>& body);

}  // namespace hvd
