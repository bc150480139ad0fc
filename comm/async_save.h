// A save that goes on while the program computes: the arrays are copied, a thread writes the copy
// and tells the agent; what became of it is heard later, on the program's own thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/checkpoint.h"

namespace hvd {

class AsyncSave {
 public:
  AsyncSave();

  // True from start() until finish() has told the end.
  bool pending() const { return pending_; }

  // Copies the arrays and starts; nothing may be pending. Throws bad_alloc with nothing changed.
  void start(const CheckpointPlace& place, uint64_t step, const std::string& note,
             const std::vector<NamedArray>& arrays);

  // Waits for the end of the save under way.
  Outcome finish(const CheckpointPlace& place);

 private:
  struct Shared;
  Outcome await_thread(const CheckpointPlace& place);

  // Outlives this object while the thread writes.
  std::shared_ptr<Shared> shared_;
  bool pending_ = false;
  uint64_t step_ = 0;
};

}  // namespace hvd
