#include "comm/session.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <new>

#include "comm/mesh.h"
#include "comm/plugin_backend.h"
#include "comm/tcp_links.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr Duration kFlushLimit = 5s;

// The links of a rank that is alone.
class NoLinks : public Links {
 public:
  NoLinks() : Links(0, 1) {}
  Outcome send(uint32_t, std::span<const char>, size_t&) override { return none(); }
  Outcome receive(uint32_t, std::span<char>, size_t&) override { return none(); }
  Outcome wait(const std::vector<Want>&, std::optional<Time>) override { return none(); }
  Outcome check() override { return {}; }
  void flush(Time) override {}
  void close() override {}

 private:
  static Outcome none() { return {HVD_INVALID_ARGUMENT, "a rank that is alone has no links"}; }
};

void warn(const std::string& line) {
  std::fprintf(stderr, "hvdcomm: %s\n", line.c_str());
}

}  // namespace

Outcome Session::open(const Settings& settings, std::unique_ptr<Session>& session) {
  std::unique_ptr<Session> made(new Session(settings));
  made->limits_ = {settings.limit, 1min, warn};
  made->welcome_.size = made->welcome_.local_size = 1;
  const Outcome joined = made->join();
  if (!joined) return joined;
  made->communicator_ = std::make_unique<Communicator>(*made->links_, made->limits_);
  const Outcome opened = made->open_backend();
  if (!opened) return opened;
  session = std::move(made);
  return {};
}

Outcome Session::make_page(Fd& memory) {
  memory.reset(memfd_create("hvd-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ftruncate(memory.get(), sizeof(ProgressPage)) != 0) {
    return {HVD_SYSTEM_ERROR, errno_error("cannot make the progress page", errno).text};
  }
  // The agent maps it too, and must not trip over a page that a worker has taken away.
  fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* mapped =
      mmap(nullptr, sizeof(ProgressPage), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) {
    return {HVD_SYSTEM_ERROR, errno_error("cannot map the progress page", errno).text};
  }
  page_ = new (mapped) ProgressPage;
  return {};
}

Outcome Session::join() {
  Fd memory;
  const Outcome paged = make_page(memory);
  if (!paged) return paged;
  if (settings_.agent_socket.empty()) {
    links_ = std::make_unique<NoLinks>();
    return {};
  }
  const WaitLimits limits{settings_.init_limit, 10s, warn};
  const Outcome joined = AgentWire::join(settings_.agent_socket, settings_.attempt, settings_.rank,
                                         memory.get(), limits, agent_);
  if (!joined) return joined;
  Patience patience(limits, settings_.rank, "hvd_init");
  const Outcome welcomed = agent_->await(
      welcome_, [](const Welcome&) { return true; }, patience, "the agent's welcome");
  if (!welcomed) return welcomed;
  if (welcome_.rank != settings_.rank || welcome_.rank >= welcome_.size) {
    return {HVD_AGENT_LOST, "the agent welcomes rank " + std::to_string(welcome_.rank) + " of " +
                                std::to_string(welcome_.size) + " where HVD_RANK is " +
                                std::to_string(settings_.rank)};
  }
  take_kept();
  return build_links();
}

// Memory that the rank wrote itself is one of its two copies; another rank's is only read.
void Session::take_kept() {
  kept_memory_ = agent_->take_descriptor();
  if (!kept_memory_) return welcome_.kept.clear();
  if (welcome_.kept.empty() || welcome_.kept.front().shard.rank != rank()) return;
  kept_states_.adopt(Fd(fcntl(kept_memory_.get(), F_DUPFD_CLOEXEC, 0)));
}

Outcome Session::build_links() {
  Listener listener;
  const Outcome listening = listen_at(welcome_.data_address, listener);
  if (!listening) return listening;
  const Outcome sent =
      agent_->send(ExchangeBlob{settings_.attempt, welcome_.rank, 0, listener.address});
  if (!sent) return sent;
  const WaitLimits limits{settings_.init_limit, 10s, warn};
  Patience patience(limits, welcome_.rank, "hvd_init");
  ExchangeResult result;
  const Outcome exchanged = agent_->await(
      result, [](const ExchangeResult& r) { return r.round == 0; }, patience,
      "all " + std::to_string(size()) + " ranks to call it");
  if (!exchanged) return exchanged;
  std::vector<Fd> sockets;
  const MeshIdentity self{settings_.attempt, welcome_.rank, welcome_.size, welcome_.secret};
  const Outcome connected = connect_mesh(self, listener, result.blobs, *agent_, patience, sockets);
  if (!connected) return connected;
  links_ = std::make_unique<TcpLinks>(welcome_.rank, std::move(sockets), *agent_);
  return {};
}

Outcome Session::open_backend() {
  if (settings_.backend == "nccl") {
    hvd_plugin_member member{};
    member.rank = rank();
    member.size = size();
    member.local_rank = local_rank();
    member.init_limit_ms = static_cast<uint64_t>(settings_.init_limit / 1ms);
    member.limit_ms = settings_.limit ? static_cast<uint64_t>(*settings_.limit / 1ms) : 0;
    const Outcome opened = PluginBackend::open(
        settings_.backend, member, *communicator_, [this] { return links_->check(); },
        backends_.emplace_back());
    if (!opened) return opened;
  }
  backends_.push_back(std::make_unique<RingBackend>(*communicator_));
  return {};
}

// What a rank does outside of these calls is its own: by that, a slow one is told from those that
// wait for it.
template <class Call>
Outcome Session::timed(Call call) {
  const Time begin = now();
  const Outcome outcome = call();
  const auto length = static_cast<uint64_t>((now() - begin).count());
  std::atomic_ref<uint64_t>(page_->in_calls_ns).fetch_add(length, std::memory_order_relaxed);
  return outcome;
}

// Begun and completed are told apart, so that who waits in a collective is told from who does not
// come.
template <class Call>
Outcome Session::counted(Call call) {
  std::atomic_ref<uint64_t>(page_->begun).fetch_add(1, std::memory_order_relaxed);
  const Outcome outcome = timed(call);
  std::atomic_ref<uint64_t>(page_->collectives)
      .store(communicator_->completed(), std::memory_order_relaxed);
  return outcome;
}

template <class Call>
Outcome Session::on_storage(Call call) {
  std::atomic_ref<uint64_t> storage(page_->storage);
  storage.store(1, std::memory_order_relaxed);
  const Outcome outcome = timed(call);
  storage.store(0, std::memory_order_relaxed);
  return ends_if_lost(outcome);
}

Outcome Session::allreduce(const void* in, void* out, uint64_t count, hvd_dtype dtype) {
  for (const auto& backend : backends_) {
    if (backend->takes(in) && backend->takes(out)) {
      return counted([&] { return backend->allreduce(in, out, count, dtype); });
    }
  }
  return {HVD_UNSUPPORTED, "no backend takes these buffers"};
}

Outcome Session::allreduce_shards(const void* shards, uint32_t total, void* out, uint64_t count,
                                  hvd_dtype dtype) {
  return counted([&] { return communicator_->allreduce_shards(shards, total, out, count, dtype); });
}

Outcome Session::broadcast(void* buffer, uint64_t count, hvd_dtype dtype, uint32_t root) {
  return counted([&] { return communicator_->broadcast(buffer, count, dtype, root); });
}

Outcome Session::barrier() {
  return counted([&] { return communicator_->barrier(); });
}

CheckpointPlace Session::checkpoint_place() const {
  CheckpointPlace place;
  place.dir = settings_.checkpoint_dir;
  place.resume_from = settings_.resume_from;
  if (!welcome_.kept.empty()) {
    place.kept = &welcome_.kept.front();
    place.kept_memory = kept_memory_.get();
  }
  place.job = settings_.job;
  place.attempt = settings_.attempt;
  place.rank = rank();
  place.size = size();
  place.agent = agent_.get();
  place.limits = limits_;
  return place;
}

Outcome Session::ends_if_lost(const Outcome& outcome) {
  const bool lives =
      outcome || outcome.code() == HVD_CHECKPOINT_FAILED || outcome.code() == HVD_NO_CHECKPOINT;
  return lives ? outcome : communicator_->fail(outcome);
}

Outcome Session::save(uint64_t step, const std::string& note,
                      const std::vector<NamedArray>& arrays) {
  if (communicator_->state().code() == HVD_PEER_FAILED && agent_) return rescue(step, note, arrays);
  if (!communicator_->state()) return communicator_->state();
  const Outcome before = wait_for_save();
  if (!before) return before;
  return on_storage([&] { return save_checkpoint(checkpoint_place(), step, note, arrays); });
}

// The communicator is over; the agent is there to tell the launcher what this rank still has.
Outcome Session::rescue(uint64_t step, const std::string& note,
                        const std::vector<NamedArray>& arrays) {
  agent_->go_on_without();
  return save_checkpoint(checkpoint_place(), step, note, arrays);
}

Outcome Session::save_async(uint64_t step, const std::string& note,
                            const std::vector<NamedArray>& arrays) {
  if (!communicator_->state()) return communicator_->state();
  const Outcome before = wait_for_save();
  if (!before) return before;
  if (settings_.checkpoint_dir.empty()) {
    return save_checkpoint(checkpoint_place(), step, note, arrays);
  }
  async_save_.start(checkpoint_place(), step, note, arrays);
  return {};
}

Outcome Session::wait_for_save() {
  if (!async_save_.pending()) return {};
  return on_storage([&] { return async_save_.finish(checkpoint_place()); });
}

Outcome Session::keep(uint64_t step, const std::string& note,
                      const std::vector<NamedArray>& arrays) {
  if (!communicator_->state()) return communicator_->state();
  if (!agent_) return {};
  if (settings_.checkpoint_dir.empty()) {
    return save_checkpoint(checkpoint_place(), step, note, arrays);
  }
  return on_storage([&] {
    const Outcome before = kept_states_.finish(checkpoint_place());
    if (before) kept_states_.start(checkpoint_place(), step, note, arrays);
    return before;
  });
}

Outcome Session::load(const std::vector<ArrayTarget>& targets, size_t note_limit,
                      LoadedCheckpoint& loaded) {
  if (!communicator_->state()) return communicator_->state();
  return on_storage(
      [&] { return load_checkpoint(checkpoint_place(), targets, note_limit, loaded); });
}

Outcome Session::abort(int code, const std::string& reason) {
  Outcome sent;
  if (agent_) sent = agent_->send(WorkerAborted{settings_.attempt, rank(), code, reason});
  // The answer to all that may still be called, not to this call.
  static_cast<void>(
      communicator_->fail({HVD_NOT_INITIALIZED, "hvd_abort was called: " + reason}).ok());
  return sent;
}

Outcome Session::finalize() {
  const Outcome saved = communicator_->state() ? wait_for_save() : Outcome();
  communicator_->finish(now() + kFlushLimit);
  // The connection stays open until the process ends, so that the agent sees that end as one.
  const Outcome sent = agent_ ? agent_->send(Finalized{}) : Outcome();
  return sent ? saved : sent;
}

}  // namespace hvd
