#include "base/frame.h"

#include <utility>

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

void FrameReader::feed(std::string_view bytes) {
  // Only now, so that the views handed out since the last feed stay valid.
  buffer_.drop(std::exchange(used_, 0));
  buffer_.append(bytes);
}

std::optional<std::string_view> FrameReader::next() {
  const std::string_view rest = buffer_.view().substr(used_);
  if (broken_ || rest.size() < kHeader) return std::nullopt;
  const uint32_t length = read_length(rest.data());
  broken_ = length > kMaxFrame;
  if (broken_ || rest.size() - kHeader < length) return std::nullopt;
  used_ += kHeader + length;
  return rest.substr(kHeader, length);
}

}  // namespace hvd
