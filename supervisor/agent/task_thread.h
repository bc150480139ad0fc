// A thread beside the loop for what can block: checkpoint files, debuggers. Tasks run one after the
// other in the order they were given; their answers come back through the loop's poller.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/message.h"
#include "supervisor/agent/watched_fd.h"

namespace hvd {

class TaskThread {
 public:
  using Task = std::function<FromAgent()>;
  // Tasks that may wait.
  static constexpr size_t kMostWaiting = 64;

  // `source` names it to the poller.
  TaskThread(Poller& poller, Source source);

  // False when too many tasks wait already.
  bool submit(Task task);
  std::vector<FromAgent> take_answers();
  void watch() { event_.watch({true, false}); }

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);

  // Outlives this object when the thread hangs on a dead disk: nobody waits for it at the end.
  std::shared_ptr<Shared> shared_;
  bool started_ = false;
  WatchedFd event_;
};

}  // namespace hvd
