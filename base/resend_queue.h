// The messages of one direction of a session that the far side has not said to have heard, as
// frames, oldest first. See base/message.h.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace hvd {

class ResendQueue {
 public:
  void add(std::string frame) { frames_.push_back(std::move(frame)); }
  // The far side has heard so many of the session's messages.
  void heard(uint64_t count) {
    for (; dropped_ < count && !frames_.empty(); ++dropped_) frames_.pop_front();
  }
  std::string unheard() const {
    std::string bytes;
    for (const std::string& frame : frames_) bytes += frame;
    return bytes;
  }

 private:
  std::deque<std::string> frames_;
  uint64_t dropped_ = 0;  // all before them
};

}  // namespace hvd
