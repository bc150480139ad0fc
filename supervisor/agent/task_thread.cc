#include "supervisor/agent/task_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace hvd {

struct TaskThread::Shared {
  std::mutex mutex;
  std::condition_variable given;
  std::deque<Task> tasks;
  std::vector<FromAgent> answers;
  Fd event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

TaskThread::TaskThread(Poller& poller, Source source)
    : shared_(std::make_shared<Shared>()),
      event_(poller, Fd(dup(shared_->event.get())), poll_name(source)) {
  HVD_CHECK(shared_->event.valid() && event_.valid());
}

void TaskThread::run(const std::shared_ptr<Shared>& shared) {
  while (true) {
    std::unique_lock lock(shared->mutex);
    shared->given.wait(lock, [&] { return !shared->tasks.empty(); });
    const Task task = std::move(shared->tasks.front());
    shared->tasks.pop_front();
    lock.unlock();
    FromAgent answer = task();
    lock.lock();
    shared->answers.push_back(std::move(answer));
    lock.unlock();
    const uint64_t one = 1;
    static_cast<void>(!write(shared->event.get(), &one, sizeof one));
  }
}

bool TaskThread::submit(Task task) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->tasks.size() >= kMostWaiting) return false;
  shared_->tasks.push_back(std::move(task));
  // Most jobs have no checkpoints and need no thread.
  if (!started_) std::thread([shared = shared_] { run(shared); }).detach();
  started_ = true;
  shared_->given.notify_one();
  return true;
}

std::vector<FromAgent> TaskThread::take_answers() {
  uint64_t count;
  static_cast<void>(!read(event_.get(), &count, sizeof count));
  const std::lock_guard lock(shared_->mutex);
  return std::move(shared_->answers);
}

}  // namespace hvd
