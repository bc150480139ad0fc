// Frames on a byte stream: a 32-bit little-endian length, then that many bytes. Used on both
// wires (launcher and agent, agent and worker).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/buffer.h"

namespace hvd {

// No frame is longer; a peer that announces more is broken or hostile and is dropped.
inline constexpr uint32_t kMaxFrame = 16u << 20;

// `body` with its length in front. The body is at most kMaxFrame bytes.
std::string frame(std::string_view body);

// Cuts a stream, fed in pieces of any size, into frames.
class FrameReader {
 public:
  void feed(std::string_view bytes);

  // The next whole frame's body, or none yet. The view lives until the next feed().
  std::optional<std::string_view> next();

  // An announced length was over kMaxFrame: the stream is of no use any more.
  bool broken() const { return broken_; }

 private:
  Buffer buffer_;
  size_t used_ = 0;  // of its front, by frames handed out
  bool broken_ = false;
};

}  // namespace hvd
