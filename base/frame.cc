#include "base/frame.h"

#include "base/error.h"

namespace hvd {

namespace {
constexpr size_t kHeader = 4;

uint32_t read_length(const char* bytes) {
  uint32_t length = 0;
  for (size_t i = 0; i < kHeader; ++i) {
    length |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return length;
}
}  // namespace

std::string frame(std::string_view body) {
  HVD_CHECK(body.size() <= kMaxFrame);
  std::string out;
  out.reserve(kHeader + body.size());
  for (size_t i = 0; i < kHeader; ++i) out.push_back(static_cast<char>(body.size() >> (8 * i)));
  out.append(body);
  return out;
}

std::optional<std::string_view> FrameReader::next() {
  if (broken_) return std::nullopt;
  const size_t have = buffer_.size() - used_;
  if (have >= kHeader) {
    const uint32_t length = read_length(buffer_.data() + used_);
    if (length > kMaxFrame) {
      broken_ = true;
      return std::nullopt;
    }
    if (have - kHeader >= length) {
      const std::string_view body(buffer_.data() + used_ + kHeader, length);
      used_ += kHeader + length;
      return body;
    }
  }
  // Only now, so that the views handed out since the last feed stay valid, is the used part cut.
  buffer_.erase(0, used_);
  used_ = 0;
  return std::nullopt;
}

}  // namespace hvd
