#include "base/poller.h"

#include <sys/epoll.h>

#include <cerrno>

namespace hvd {

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  HVD_CHECK(epoll_.valid());
}

void Poller::watch(int fd, uint64_t id, Interest interest) {
  if (!interest.read && !interest.write) return forget(fd);
  const auto known = watched_.find(fd);
  if (known != watched_.end() && known->second.id == id && known->second.interest == interest) {
    return;
  }
  epoll_event event{};
  event.events = (interest.read ? EPOLLIN : 0u) | (interest.write ? EPOLLOUT : 0u);
  event.data.u64 = id;
  const int op = known == watched_.end() ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  HVD_CHECK(epoll_ctl(epoll_.get(), op, fd, &event) == 0);
  watched_[fd] = Watch{id, interest};
}

void Poller::forget(int fd) {
  if (watched_.erase(fd) == 0) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

std::vector<Ready> Poller::wait(std::optional<Time> deadline) {
  epoll_event events[64];
  const int n = epoll_wait(epoll_.get(), events, 64, poll_timeout(deadline, now()));
  HVD_CHECK(n >= 0 || errno == EINTR);
  std::vector<Ready> ready;
  for (int i = 0; i < n; ++i) {
    const bool broken = (events[i].events & (EPOLLHUP | EPOLLERR)) != 0;
    ready.push_back({events[i].data.u64, broken || (events[i].events & EPOLLIN) != 0,
                     broken || (events[i].events & EPOLLOUT) != 0});
  }
  return ready;
}

}  // namespace hvd
