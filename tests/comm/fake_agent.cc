#include "tests/comm/fake_agent.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/checkpoint_format.h"
#include "base/time.h"

namespace hvd {

using namespace std::chrono_literals;

FakeAgent::FakeAgent(const Options& options) : options_(options) {
  listener_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s/agent", folder_.path().c_str());
  REQUIRE(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(listener_.get(), 64) == 0);
  thread_ = std::thread([this] { run(); });
}

FakeAgent::~FakeAgent() {
  stopping_ = true;
  thread_.join();
  for (const auto& [rank, page] : pages_) {
    munmap(const_cast<ProgressPage*>(page.mapped), sizeof(ProgressPage));
  }
}

Environment FakeAgent::environment(uint32_t rank) const {
  Environment environment = {{"HVD_AGENT_SOCKET", folder_.path() + "/agent"},
                             {"HVD_RANK", std::to_string(rank)},
                             {"HVD_ATTEMPT", std::to_string(options_.attempt)},
                             {"HVD_JOB_ID", "test"}};
  if (!options_.checkpoint_dir.empty()) environment["HVD_CHECKPOINT_DIR"] = options_.checkpoint_dir;
  if (!options_.resume_from.empty()) environment["HVD_RESUME_FROM"] = options_.resume_from;
  return environment;
}

ProgressPage FakeAgent::progress(uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = pages_.find(rank);
  if (found == pages_.end()) return {};
  const auto read = [](const uint64_t& counter) {
    return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(counter)).load();
  };
  const ProgressPage& page = *found->second.mapped;
  ProgressPage copy{read(page.step), read(page.heartbeats), read(page.collectives)};
  copy.in_calls_ns = read(page.in_calls_ns);
  return copy;
}

namespace {

// Asks again and again until it is so; false if it takes over 30 s.
bool await(const std::function<bool()>& so) {
  const Time deadline = now() + 30s;
  while (!so()) {
    if (now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

}  // namespace

bool FakeAgent::await_joined(uint32_t rank) const {
  return await([&] {
    const std::lock_guard lock(mutex_);
    return pages_.contains(rank);
  });
}

bool FakeAgent::await_collectives(uint32_t rank, uint64_t count) const {
  return await([&] { return progress(rank).collectives >= count; });
}

bool FakeAgent::await_finalized(uint32_t rank) const {
  return await([&] { return finalized(rank); });
}

bool FakeAgent::finalized(uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  return finalized_.contains(rank);
}

std::vector<WorkerAborted> FakeAgent::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

std::vector<StateLoaded> FakeAgent::loaded() const {
  const std::lock_guard lock(mutex_);
  return loaded_;
}

std::vector<std::string> FakeAgent::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_shards_;
}

void FakeAgent::run() {
  while (!stopping_) {
    step();
    if (dying_) workers_.clear();
  }
}

void FakeAgent::step() {
  std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
  for (const auto& worker : workers_) {
    polled.push_back({worker->gone ? -1 : worker->fd.get(), POLLIN, 0});
  }
  poll(polled.data(), polled.size(), 10);
  for (size_t i = 1; i < polled.size(); ++i) {
    Worker& worker = *workers_[i - 1];
    if (polled[i].revents != 0 && !read_worker(worker)) lose(worker);
  }
  if (polled[0].revents != 0) accept_worker();
}

void FakeAgent::accept_worker() {
  auto worker = std::make_unique<Worker>();
  worker->fd.reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (worker->fd) workers_.push_back(std::move(worker));
}

bool FakeAgent::read_worker(Worker& worker) {
  char bytes[65536];
  iovec piece{bytes, sizeof bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(worker.fd.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (n <= 0) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    received_.reset(fd);
  }
  worker.reader.feed({bytes, static_cast<size_t>(n)});
  while (const auto body = worker.reader.next()) {
    const auto parsed = parse_from_worker(*body);
    if (!parsed) return false;
    handle(worker, *parsed);
  }
  return !worker.reader.broken();
}

void FakeAgent::handle(Worker& worker, const FromWorker& message) {
  if (const auto* m = std::get_if<Join>(&message)) return join(worker, *m);
  if (const auto* m = std::get_if<ExchangeBlob>(&message)) return exchange(*m);
  if (const auto* m = std::get_if<ShardSaved>(&message)) return save(*m);
  if (const auto* m = std::get_if<StateLoaded>(&message)) return load(*m);
  if (const auto* m = std::get_if<ShardKept>(&message)) return keep(*m);
  const std::lock_guard lock(mutex_);
  if (const auto* m = std::get_if<WorkerAborted>(&message)) aborted_.push_back(*m);
  if (std::holds_alternative<Finalized>(message)) finalized_[worker.rank] = true;
}

void FakeAgent::join(Worker& worker, const Join& join) {
  if (join.protocol != kProtocol || join.attempt != options_.attempt || !received_) {
    return lose(worker);
  }
  void* mapped = mmap(nullptr, sizeof(ProgressPage), PROT_READ, MAP_SHARED, received_.get(), 0);
  received_.reset();
  if (mapped == MAP_FAILED) return lose(worker);
  {
    const std::lock_guard lock(mutex_);
    pages_[join.rank].mapped = static_cast<const ProgressPage*>(mapped);
  }
  worker.rank = join.rank;
  worker.joined = true;
  send(worker, Welcome{options_.attempt,
                       join.rank,
                       options_.size,
                       join.rank,
                       options_.size,
                       "127.0.0.1",
                       secret(),
                       {}});
}

void FakeAgent::exchange(const ExchangeBlob& blob) {
  blobs_[blob.rank] = blob.blob;
  if (blobs_.size() < options_.size) return;
  ExchangeResult result{options_.attempt, blob.round, {}};
  for (const auto& [rank, text] : blobs_) result.blobs.push_back(text);
  if (options_.before_exchange) options_.before_exchange(result.blobs);
  send_all(result);
}

void FakeAgent::save(const ShardSaved& saved) {
  shards_[saved.shard.rank] = saved;
  if (shards_.size() < options_.size) return;
  send_all(SaveResult{options_.attempt, saved.step, commit(saved.step)});
  shards_.clear();
}

void FakeAgent::keep(const ShardKept& kept) {
  std::string bytes(kept.shard.length, '\0');
  const ssize_t n = pread(received_.get(), bytes.data(), bytes.size(), 0);
  received_.reset();
  {
    const std::lock_guard lock(mutex_);
    const bool whole = n == static_cast<ssize_t>(bytes.size());
    kept_shards_.push_back(whole && shard_digest(bytes) == kept.shard.digest ? bytes : "");
  }
  if (++kept_ < options_.size) return;
  kept_ = 0;
  send_all(KeepResult{options_.attempt, kept.step, std::exchange(options_.keep_refusal, "")});
}

// Empty, or why the save is not committed.
std::string FakeAgent::commit(uint64_t step) {
  if (!options_.save_refusal.empty()) return options_.save_refusal;
  Manifest manifest;
  manifest.job = "test";
  manifest.attempt = options_.attempt;
  manifest.step = step;
  manifest.size = options_.size;
  manifest.note = shards_[0].note;
  for (const auto& [rank, saved] : shards_) {
    if (saved.step != step) return "rank " + std::to_string(rank) + " saved another step";
    if (!saved.error.empty()) return "rank " + std::to_string(rank) + ": " + saved.error;
    manifest.shards.push_back(saved.shard);
  }
  manifest.replicated = serves_any_rank(manifest.shards);
  const std::string draft = options_.checkpoint_dir + "/" + draft_folder(step, options_.attempt);
  const std::string target = options_.checkpoint_dir + "/" + step_folder(step);
  const Status written = replace_file(draft + "/manifest.json", manifest_text(manifest), 0644);
  if (!written) return written.error().text;
  return rename(draft.c_str(), target.c_str()) == 0 ? "" : "the rename failed";
}

void FakeAgent::load(const StateLoaded& loaded) {
  std::string error;
  {
    const std::lock_guard lock(mutex_);
    loaded_.push_back(loaded);
    if (loaded_.size() < options_.size) return;
    for (const StateLoaded& one : loaded_) {
      if (one.state_digest != loaded_.front().state_digest) {
        error = "rank " + std::to_string(one.rank) + " loaded another state";
      }
    }
    for (const StateLoaded& one : loaded_) {
      if (!one.error.empty()) error = "rank " + std::to_string(one.rank) + ": " + one.error;
    }
  }
  send_all(LoadResult{options_.attempt, error});
}

void FakeAgent::lose(Worker& worker) {
  worker.gone = true;
  worker.fd.reset();
  if (worker.joined && !finalized(worker.rank) && options_.tells_deaths) {
    send_all(PeerFailed{options_.attempt, worker.rank, "it ended in the test"});
  }
}

void FakeAgent::send(Worker& worker, const ToWorker& message) {
  const std::string bytes = to_frame(message);
  // A worker that has just ended is noticed by the next read.
  static_cast<void>(::send(worker.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

void FakeAgent::send_all(const ToWorker& message) {
  for (const auto& worker : workers_) {
    if (!worker->gone && worker->joined) send(*worker, message);
  }
}

}  // namespace hvd
