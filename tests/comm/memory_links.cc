#include "tests/comm/memory_links.h"

#include <algorithm>
#include <thread>

namespace hvd {

class MemoryLinks : public Links {
 public:
  MemoryLinks(MemoryNet& net, uint32_t rank) : Links(rank, net.size()), net_(net) {}

  Outcome send(uint32_t peer, std::span<const char> bytes, size_t& moved) override {
    const std::lock_guard lock(net_.mutex_);
    MemoryNet::Pipe& pipe = net_.pipe(rank(), peer);
    moved = 0;
    if (pipe.closed) {
      // What a rank said before it left is still to be read.
      if (net_.pipe(peer, rank()).bytes.empty()) return closed(peer);
      moved = bytes.size();
      return {};
    }
    moved = std::min(bytes.size(), net_.capacity_ - pipe.bytes.size());
    pipe.bytes.insert(pipe.bytes.end(), bytes.begin(),
                      bytes.begin() + static_cast<ptrdiff_t>(moved));
    net_.changed_.notify_all();
    return {};
  }

  Outcome receive(uint32_t peer, std::span<char> bytes, size_t& moved) override {
    const std::lock_guard lock(net_.mutex_);
    MemoryNet::Pipe& pipe = net_.pipe(peer, rank());
    moved = std::min(bytes.size(), pipe.bytes.size());
    if (moved == 0 && pipe.closed) return closed(peer);
    const auto end = pipe.bytes.begin() + static_cast<ptrdiff_t>(moved);
    std::copy(pipe.bytes.begin(), end, bytes.begin());
    pipe.bytes.erase(pipe.bytes.begin(), end);
    net_.changed_.notify_all();
    return {};
  }

  Outcome wait(const std::vector<Want>& wants, std::optional<Time> deadline) override {
    std::unique_lock lock(net_.mutex_);
    const auto ready = [&] {
      if (!net_.news_) return true;
      return std::any_of(wants.begin(), wants.end(), [&](const Want& want) {
        const MemoryNet::Pipe& out = net_.pipe(rank(), want.peer);
        const MemoryNet::Pipe& in = net_.pipe(want.peer, rank());
        return (want.send && (out.closed || out.bytes.size() < net_.capacity_)) ||
               (want.receive && (in.closed || !in.bytes.empty()));
      });
    };
    if (deadline) {
      net_.changed_.wait_until(lock, *deadline, ready);
    } else {
      net_.changed_.wait(lock, ready);
    }
    return net_.news_;
  }

  Outcome check() override {
    const std::lock_guard lock(net_.mutex_);
    return net_.news_;
  }

  void flush(Time) override {}

  void close() override {
    const std::lock_guard lock(net_.mutex_);
    for (uint32_t peer = 0; peer < size(); ++peer) {
      net_.pipe(rank(), peer).closed = net_.pipe(peer, rank()).closed = true;
    }
    net_.changed_.notify_all();
  }

 private:
  static Outcome closed(uint32_t peer) {
    return {HVD_PEER_FAILED, "lost the link to rank " + std::to_string(peer)};
  }

  MemoryNet& net_;
};

MemoryNet::MemoryNet(uint32_t size, size_t capacity)
    : size_(size), capacity_(capacity), pipes_(static_cast<size_t>(size) * size) {}

std::unique_ptr<Links> MemoryNet::links(uint32_t rank) {
  return std::make_unique<MemoryLinks>(*this, rank);
}

void MemoryNet::tell(const Outcome& news) {
  const std::lock_guard lock(mutex_);
  news_ = news;
  changed_.notify_all();
}

std::vector<Outcome> run_ranks(MemoryNet& net,
                               const std::function<Outcome(uint32_t rank, Links& links)>& body) {
  std::vector<Outcome> outcomes(net.size());
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < net.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Links> links = net.links(rank);
      outcomes[rank] = body(rank, *links);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace hvd
