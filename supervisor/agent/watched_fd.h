// A descriptor that a Poller watches: forgotten there before it is closed.
#pragma once

#include <utility>

#include "base/fd.h"
#include "base/poller.h"

namespace hvd {

// What the agent's Poller names. A name is a source and a serial number of that source.
enum class Source : uint8_t {
  keeper,
  wire_in,
  wire_out,
  tasks,
  stacks,
  listener,
  connection,
  exit,
  notify,
  out,
  err,
  input,
  proof_listener,
  proof_caller,
  proof_call,
  leave,
  door,
  door_caller
};

constexpr uint64_t poll_name(Source source, uint64_t serial = 0) {
  return static_cast<uint64_t>(source) << 56 | serial;
}
constexpr Source source_of(uint64_t name) {
  return static_cast<Source>(name >> 56);
}
constexpr uint64_t serial_of(uint64_t name) {
  return name & ((uint64_t{1} << 56) - 1);
}

class WatchedFd {
 public:
  WatchedFd(Poller& poller, Fd fd, uint64_t name)
      : poller_(&poller), fd_(std::move(fd)), name_(name) {}
  WatchedFd(WatchedFd&&) noexcept = default;
  WatchedFd& operator=(WatchedFd&& other) noexcept {
    close();
    poller_ = other.poller_;
    fd_ = std::move(other.fd_);
    name_ = other.name_;
    return *this;
  }
  ~WatchedFd() { close(); }

  void close() {
    if (fd_) poller_->forget(fd_.get());
    fd_.reset();
  }
  void watch(Interest interest) {
    if (fd_) poller_->watch(fd_.get(), name_, interest);
  }
  int get() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }

 private:
  Poller* poller_;
  Fd fd_;
  uint64_t name_;
};

}  // namespace hvd
