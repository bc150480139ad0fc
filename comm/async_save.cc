#include "comm/async_save.h"

#include <sys/mman.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

namespace hvd {

using namespace std::chrono_literals;

namespace {

// A page apart, so that every copy is as fast as the first.
constexpr uint64_t kAlignment = 64;
constexpr auto kLook = 50ms;

uint64_t aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Memory that stays from one save to the next: its pages are there when they are written to.
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() { clear(); }

  char* reserve(uint64_t bytes) {
    if (bytes <= size_) return memory_;
    clear();
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(mapped);
    size_ = bytes;
    return memory_;
  }

 private:
  void clear() {
    if (memory_ != nullptr) munmap(memory_, size_);
    memory_ = nullptr;
    size_ = 0;
  }
  char* memory_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace

struct AsyncSave::Shared {
  Staging staging;
  std::vector<NamedArray> arrays;  // in `staging`

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool done = true;
  ShardSaved part;
  Outcome told;

  void copy(const std::vector<NamedArray>& from);
};

void AsyncSave::Shared::copy(const std::vector<NamedArray>& from) {
  uint64_t bytes = 0;
  for (const NamedArray& array : from) bytes += aligned(array.bytes);
  std::vector<NamedArray> copies = from;
  char* at = staging.reserve(bytes);
  for (NamedArray& array : copies) {
    if (array.bytes > 0) std::memcpy(at, array.data, array.bytes);
    if (array.data != nullptr) array.data = at;
    at += aligned(array.bytes);
  }
  arrays = std::move(copies);
}

AsyncSave::AsyncSave() : shared_(std::make_shared<Shared>()) {}

void AsyncSave::start(const CheckpointPlace& place, uint64_t step, const std::string& note,
                      const std::vector<NamedArray>& arrays) {
  shared_->copy(arrays);
  shared_->done = false;
  shared_->told = {};
  try {
    std::thread([shared = shared_, place, step, note] {
      ShardSaved part = write_part(place, step, note, shared->arrays);
      Outcome told;
      if (place.agent != nullptr) told = place.agent->send_aside(part);
      const std::lock_guard lock(shared->mutex);
      shared->part = std::move(part);
      shared->told = std::move(told);
      shared->done = true;
      shared->changed.notify_all();
    }).detach();
  } catch (const std::system_error&) {
    shared_->done = true;
    throw std::bad_alloc();
  }
  step_ = step;
  pending_ = true;
}

Outcome AsyncSave::await_thread(const CheckpointPlace& place) {
  Patience patience(place.limits, place.rank, "the save of step " + std::to_string(step_));
  while (true) {
    {
      std::unique_lock lock(shared_->mutex);
      if (shared_->changed.wait_for(lock, kLook, [&] { return shared_->done; })) return {};
    }
    const Outcome patient = patience.check([] { return std::string("its own disk"); });
    if (!patient) return patient;
  }
}

Outcome AsyncSave::finish(const CheckpointPlace& place) {
  const Outcome written = await_thread(place);
  if (!written) return written;
  pending_ = false;
  if (!shared_->told) return shared_->told;
  return await_save(place, shared_->part);
}

}  // namespace hvd
