#include "launcher/stdin_reader.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

#include "base/fd.h"

namespace hvd {

namespace {
constexpr size_t kAtOnce = 65536;
// How often a terminal in whose background we are is tried.
constexpr int kBackgroundMs = 200;

void wake(const Fd& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event.get(), &one, sizeof one);
}
}  // namespace

// Lives as long as either of reader and thread.
struct StdinReader::Shared {
  Fd news{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Fd stop{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex;
  std::condition_variable more;
  uint64_t allowed;  // under mutex, as all below
  std::string bytes;
  bool ended = false, stopped = false;

  explicit Shared(uint64_t window) : allowed(window) {}
  void run();
  uint64_t wait_for_room();
  // Whether standard input has something; false: stop.
  bool wait_for_input() const;
};

uint64_t StdinReader::Shared::wait_for_room() {
  std::unique_lock lock(mutex);
  more.wait(lock, [this] { return allowed > 0 || stopped; });
  return stopped ? 0 : allowed;
}

bool StdinReader::Shared::wait_for_input() const {
  pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {stop.get(), POLLIN, 0}};
  while (poll(fds, 2, -1) < 0 && errno == EINTR) {
  }
  return fds[1].revents == 0;
}

void StdinReader::Shared::run() {
  char block[kAtOnce];
  while (const uint64_t room = wait_for_room()) {
    if (!wait_for_input()) return;
    const ssize_t n = read(STDIN_FILENO, block, std::min<uint64_t>(room, sizeof block));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0 && errno == EIO && isatty(STDIN_FILENO) == 1) {
      // In the background: SIGTTIN is blocked in this thread.
      pollfd end{stop.get(), POLLIN, 0};
      if (poll(&end, 1, kBackgroundMs) > 0) return;
      continue;
    }
    const std::lock_guard lock(mutex);
    if (n > 0) bytes.append(block, static_cast<size_t>(n));
    if (n > 0) allowed -= static_cast<uint64_t>(n);
    ended = n <= 0;
    wake(news);
    if (ended) return;
  }
}

StdinReader::StdinReader(uint64_t window) : shared_(std::make_shared<Shared>(window)) {
  // Signals are the loop's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([shared = shared_] { shared->run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StdinReader::~StdinReader() {
  const std::lock_guard lock(shared_->mutex);
  shared_->stopped = true;
  shared_->more.notify_one();
  wake(shared_->stop);
}

int StdinReader::fd() const {
  return shared_->news.get();
}

StdinReader::Piece StdinReader::take() {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(shared_->news.get(), &count, sizeof count);
  const std::lock_guard lock(shared_->mutex);
  return {std::exchange(shared_->bytes, {}), std::exchange(shared_->ended, false)};
}

void StdinReader::grant(uint64_t bytes) {
  const std::lock_guard lock(shared_->mutex);
  shared_->allowed += bytes;
  shared_->more.notify_one();
}

}  // namespace hvd
