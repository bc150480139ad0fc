// This rank's state in memory that its agent holds too, so that it outlives the process: two copies
// in turn, of which the newest that all ranks have is never written to. The call copies the arrays;
// a thread looks at the copy, makes a shard of it and tells the agent.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "comm/checkpoint.h"

namespace hvd {

// Memory behind a descriptor, mapped. Grows to what it is asked to hold.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { unmap(); }

  // Takes over what another process had made.
  void adopt(Fd memory) { fd_ = std::move(memory); }
  // Exactly so many bytes long; the error says why not.
  Status resize(uint64_t bytes);
  char* bytes() const { return mapped_; }
  int fd() const { return fd_.get(); }

 private:
  void unmap();
  Fd fd_;
  char* mapped_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  uint64_t held_bytes_ = 0;  // of the memory, all of them there
};

class KeptStates {
 public:
  KeptStates();

  // The memory of the state that this process goes on from, which is its own rank's: one of the
  // two, to be written to when there is a newer one.
  void adopt(Fd memory);

  // True from start() until finish() has told the end.
  bool pending() const { return pending_; }

  // Copies the arrays and starts; nothing may be pending.
  void start(const CheckpointPlace& place, uint64_t step, const std::string& note,
             const std::vector<NamedArray>& arrays);

  // Waits until all ranks have theirs of the step under way, or it is known that one has not.
  Outcome finish(const CheckpointPlace& place);

 private:
  struct Shared;
  // Outlives this object while the thread works.
  std::shared_ptr<Shared> shared_;
  size_t next_ = 0;  // which of the two is written to
  bool pending_ = false;
  uint64_t step_ = 0;
};

}  // namespace hvd
