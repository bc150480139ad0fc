// What the fuzz targets share. A target is LLVMFuzzerTestOneInput: it gives bytes from outside to a
// parser and checks what must hold for any bytes. `./dev test` replays its corpus, `./dev fuzz` and
// `./dev test full` look for more with libFuzzer. A promise that is broken is an HVD_CHECK.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "launcher/host_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace hvd::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// The text up to the first `mark`; `text` becomes what is behind it.
inline std::string_view take_until(std::string_view& text, char mark) {
  const size_t end = text.find(mark);
  const std::string_view front = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return front;
}

// The number that the first byte of `text` is, which is taken off; 0 for none.
inline uint8_t take_byte(std::string_view& text) {
  if (text.empty()) return 0;
  const auto byte = static_cast<uint8_t>(text.front());
  text.remove_prefix(1);
  return byte;
}

// Gives the text in pieces of `piece` bytes, at least 1.
inline void in_pieces(std::string_view text, size_t piece,
                      const std::function<void(std::string_view)>& put) {
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) {
    put(text.substr(0, piece));
  }
}

// Control characters, but for tabs.
inline bool has_controls(std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && byte != '\t') || byte == 0x7f) return true;
  }
  return false;
}

// An error for people: it says where, in one line of bounded length that steers no terminal.
inline void check_sentence(const std::string& text, std::string_view place) {
  constexpr size_t kLongest = 2000;
  HVD_CHECK(text.starts_with(place) && text.size() > place.size());
  HVD_CHECK(text.size() < kLongest);
  HVD_CHECK(!has_controls(text));
  HVD_CHECK(is_utf8(text));
}

}  // namespace hvd::fuzz
