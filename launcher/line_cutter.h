// Cuts one stream of one rank into pieces to show. Pure. A piece ends in a newline, in a lone
// carriage return as progress bars write it, or in neither: then it is part of a line whose end has
// not come. All pieces together are the stream, byte for byte.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace hvd {

// A line longer than this is shown in pieces, so that no line of a rank can take all memory.
inline constexpr size_t kLongestLine = 64 << 10;

class LineCutter {
 public:
  // Calls put(piece) for each line that these bytes complete. The views live as long as the call.
  template <class Put>
  void feed(std::string_view bytes, Put&& put);
  // Puts what waits for its end as it is: it waited long enough, or there is no more.
  template <class Put>
  void flush(Put&& put);

  bool waiting() const { return !partial_.empty(); }
  size_t held() const { return partial_.size(); }

 private:
  static constexpr size_t kNone = std::string_view::npos;

  // Behind the end of the first line, kNone if there is none. A return at the very end may be half
  // of a CR LF.
  static size_t line_length(std::string_view bytes, bool returns);

  std::string partial_;
  bool after_return_ = false;  // a return was put that may turn out to be half of a CR LF
};

inline size_t LineCutter::line_length(std::string_view bytes, bool returns) {
  const size_t end = returns ? bytes.find_first_of("\r\n") : bytes.find('\n');
  if (end == kNone || bytes[end] == '\n') return end == kNone ? kNone : end + 1;
  if (end + 1 == bytes.size()) return kNone;
  return bytes[end + 1] == '\n' ? end + 2 : end + 1;
}

template <class Put>
void LineCutter::feed(std::string_view bytes, Put&& put) {
  if (bytes.empty()) return;
  if (std::exchange(after_return_, false) && bytes.front() == '\n') bytes.remove_prefix(1);
  if (!partial_.empty() && partial_.back() == '\r' && !bytes.empty() && bytes.front() != '\n') {
    put(std::string_view(std::exchange(partial_, {})));
  }
  const bool returns = std::memchr(bytes.data(), '\r', bytes.size()) != nullptr;
  for (size_t length; (length = line_length(bytes, returns)) != kNone;) {
    if (partial_.empty()) {
      put(bytes.substr(0, length));
    } else {
      partial_ += bytes.substr(0, length);
      put(std::string_view(partial_));
      partial_.clear();
    }
    bytes.remove_prefix(length);
  }
  partial_ += bytes;
  if (partial_.size() >= kLongestLine) flush(put);
}

template <class Put>
void LineCutter::flush(Put&& put) {
  if (partial_.empty()) return;
  after_return_ = partial_.back() == '\r';
  put(std::string_view(partial_));
  partial_.clear();
}

}  // namespace hvd
