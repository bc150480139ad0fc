// An agent and launcher in one, for the ranks of a test: a thread that speaks wire 2.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/frame.h"
#include "base/message.h"
#include "tests/comm/processes.h"

namespace hvd {

class FakeAgent {
 public:
  struct Options {
    uint32_t size = 1;
    uint32_t attempt = 1;
    // Tells all others when a rank's connection ends before it finalized.
    bool tells_deaths = true;
    std::string checkpoint_dir = "";
    std::string resume_from = "";
    // What every save is answered with; empty: it is committed.
    std::string save_refusal = "";
    // What the first state that is kept in memory is answered with.
    std::string keep_refusal = "";
    // Sees all addresses before any rank does.
    std::function<void(const std::vector<std::string>&)> before_exchange = nullptr;
  };
  explicit FakeAgent(const Options& options);
  ~FakeAgent();

  // The environment of a rank.
  Environment environment(uint32_t rank) const;

  // What a rank has counted; zeros before it has joined.
  ProgressPage progress(uint32_t rank) const;
  // Waits until a rank has joined; false if it takes over 30 s.
  bool await_joined(uint32_t rank) const;
  // Waits until a rank has completed that many collectives; false if it takes over 30 s.
  bool await_collectives(uint32_t rank, uint64_t count) const;
  // Waits until a rank has said that it finalized; false if it takes over 30 s.
  bool await_finalized(uint32_t rank) const;
  std::vector<WorkerAborted> aborted() const;
  std::vector<StateLoaded> loaded() const;
  // The shards that were kept, as they lay in the memory that came with them.
  std::vector<std::string> kept() const;
  std::string secret() const { return "a secret of sixteen"; }

  // Ends all connections, as an agent that was killed.
  void die() { dying_ = true; }

 private:
  bool finalized(uint32_t rank) const;
  struct Worker {
    Fd fd;
    FrameReader reader;
    uint32_t rank = 0;
    bool joined = false, gone = false;
  };
  struct Page {
    const ProgressPage* mapped = nullptr;
  };
  void run();
  void step();
  void accept_worker();
  bool read_worker(Worker& worker);
  void handle(Worker& worker, const FromWorker& message);
  void join(Worker& worker, const Join& join);
  void exchange(const ExchangeBlob& blob);
  void save(const ShardSaved& saved);
  void keep(const ShardKept& kept);
  void load(const StateLoaded& loaded);
  void lose(Worker& worker);
  void send(Worker& worker, const ToWorker& message);
  void send_all(const ToWorker& message);
  std::string commit(uint64_t step);

  Options options_;
  TemporaryFolder folder_;
  Fd listener_;
  std::vector<std::unique_ptr<Worker>> workers_;
  Fd received_;  // the descriptor that came last
  std::map<uint32_t, std::string> blobs_;
  std::map<uint32_t, ShardSaved> shards_;
  uint32_t kept_ = 0;  // ranks that told of the step under way

  mutable std::mutex mutex_;  // guards what the test asks for
  std::map<uint32_t, Page> pages_;
  std::map<uint32_t, bool> finalized_;
  std::vector<WorkerAborted> aborted_;
  std::vector<StateLoaded> loaded_;
  std::vector<std::string> kept_shards_;

  std::atomic<bool> stopping_{false}, dying_{false};
  std::thread thread_;
};

}  // namespace hvd
