#include "comm/kept_state.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

namespace hvd {

namespace {

// Mapped beyond the end, so that a longer header needs no other mapping.
constexpr uint64_t kSlack = 1u << 16;

}  // namespace

void SharedMemory::unmap() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
  mapped_ = nullptr;
  mapped_bytes_ = 0;
}

Status SharedMemory::resize(uint64_t bytes) {
  if (!fd_) fd_.reset(memfd_create("hvd-kept", MFD_CLOEXEC));
  if (!fd_) return errno_error("there is no memory for a copy", errno);
  if (bytes > mapped_bytes_) unmap();
  // Taken now: a page that is not there when it is written to would be the end of the process.
  const bool more = bytes > held_bytes_;
  held_bytes_ = 0;
  if (ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0 ||
      (more && fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) != 0)) {
    return errno_error("there is no memory for a copy of " + std::to_string(bytes) + " bytes",
                       errno);
  }
  held_bytes_ = bytes;
  if (mapped_ != nullptr) return Ok{};
  // Populated, so that every copy is as fast as the first.
  void* mapped = mmap(nullptr, bytes + kSlack, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                      fd_.get(), 0);
  if (mapped == MAP_FAILED) {
    return errno_error("a copy of " + std::to_string(bytes) + " bytes cannot be mapped", errno);
  }
  mapped_ = static_cast<char*>(mapped);
  mapped_bytes_ = bytes + kSlack;
  return Ok{};
}

struct KeptStates::Shared {
  std::array<SharedMemory, 2> copies;
};

KeptStates::KeptStates() : shared_(std::make_shared<Shared>()) {}

void KeptStates::adopt(Fd memory) {
  shared_->copies[0].adopt(std::move(memory));
  next_ = 1;
}

void KeptStates::start(const CheckpointPlace& place, uint64_t step, const std::string& note,
                       const std::vector<NamedArray>& arrays) {
  SharedMemory& copy = shared_->copies[next_];
  const ShardIdentity identity{place.job, place.attempt, step, place.rank, place.size};
  Result<ShardPlan> plan =
      plan_shard("the state of step " + std::to_string(step), identity, note, arrays);
  Status ready = plan ? copy.resize(plan->length) : Status(plan.error());
  ShardKept kept;
  kept.attempt = place.attempt;
  kept.step = step;
  kept.shard.rank = place.rank;
  step_ = step;
  pending_ = true;
  if (!ready) {
    kept.error = ready.error().text;
    static_cast<void>(place.agent->send(kept));
    return;
  }
  copy_arrays(*plan, copy.bytes());
  const auto look = [shared = shared_, agent = place.agent, kept = std::move(kept),
                     plan = std::move(*plan), which = next_]() mutable {
    kept.shard = finish_shard(plan, shared->copies[which].bytes());
    // What becomes of it is heard from the launcher, or that the agent is gone.
    static_cast<void>(agent->send_aside(kept, shared->copies[which].fd()));
  };
  try {
    std::thread(look).detach();
  } catch (const std::system_error&) {
    auto here = look;
    here();
  }
}

Outcome KeptStates::finish(const CheckpointPlace& place) {
  if (!pending_) return {};
  Patience patience(place.limits, place.rank,
                    "the copy of step " + std::to_string(step_) + " in memory");
  KeepResult result;
  const Outcome told = place.agent->await(
      result, [this](const KeepResult& r) { return r.step == step_; }, patience,
      "all ranks to have theirs");
  if (!told) return told;
  pending_ = false;
  if (!result.error.empty()) {
    return {HVD_CHECKPOINT_FAILED,
            "step " + std::to_string(step_) + " is not kept in memory: " + result.error};
  }
  next_ = 1 - next_;
  return {};
}

}  // namespace hvd
