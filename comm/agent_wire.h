// The worker's end of wire 2, to the agent of its host.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "base/fd.h"
#include "base/frame.h"
#include "base/message.h"
#include "comm/outcome.h"
#include "comm/patience.h"

namespace hvd {

class AgentWire {
 public:
  // Connects to the agent's socket and joins as `rank` of `attempt`, handing over `progress`, the
  // memfd of a ProgressPage. `limits` bounds the wait for an agent that is slow to accept.
  static Outcome join(const std::string& path, uint32_t attempt, uint32_t rank, int progress,
                      const WaitLimits& limits, std::unique_ptr<AgentWire>& wire);

  // Readable when check() has something to do.
  int fd() const { return fd_.get(); }

  // Hands over a message, waiting at most 10 s for room.
  Outcome send(const FromWorker& message);

  // The same from another thread, with a descriptor if there is one; a failure is the next send's
  // or check's to find.
  Outcome send_aside(const FromWorker& message, int descriptor = -1);

  // What came beside the agent's welcome, if anything.
  Fd take_descriptor() { return std::move(descriptor_); }

  // Takes in what has come, without waiting. Fails, from then on for good, when the agent told that
  // a rank is gone or is gone itself.
  Outcome check();

  // After the news that a rank is gone: goes on as long as the agent is there, deaf to more of it.
  void go_on_without();

  // Like check(), but gives the agent `grace` to tell why a link has closed.
  Outcome check_within(Duration grace);

  // The first message of kind T for which `accept` is true; others of that kind are dropped. Fails
  // as check() does and as `patience` says.
  template <class T, class Accept>
  Outcome await(T& message, Accept accept, Patience& patience, const std::string& whom) {
    while (true) {
      const Outcome state = check();
      while (std::optional<T> found = take<T>()) {
        if (!accept(*found)) continue;
        message = std::move(*found);
        return {};
      }
      if (!state) return state;
      const Outcome patient = patience.check([&] { return whom; });
      if (!patient) return patient;
      wait(patience.deadline());
    }
  }

 private:
  AgentWire(Fd fd, uint32_t attempt) : fd_(std::move(fd)), attempt_(attempt) {}
  void wait(std::optional<Time> deadline);
  void read_all();
  void sort_in(ToWorker message);
  void lose(const std::string& why);
  Outcome send_bytes(std::string_view bytes, int descriptor);
  std::string push(std::string_view bytes, int descriptor);

  // The oldest message of kind T.
  template <class T>
  std::optional<T> take() {
    for (auto it = inbox_.begin(); it != inbox_.end(); ++it) {
      if (T* found = std::get_if<T>(&*it)) {
        T message = std::move(*found);
        inbox_.erase(it);
        return message;
      }
    }
    return std::nullopt;
  }

  Fd fd_;
  uint32_t attempt_;
  std::mutex sending_;  // whole messages
  FrameReader reader_;
  std::deque<ToWorker> inbox_;
  Fd descriptor_;
  Outcome state_;
  bool goes_on_ = false;  // without ranks that are gone
};

}  // namespace hvd
