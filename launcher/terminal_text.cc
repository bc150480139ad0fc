#include "launcher/terminal_text.h"

#include <algorithm>

namespace hvd {

namespace {

void put_escaped(std::string& out, unsigned char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

// How many bytes at the begin of `text` are one character of UTF-8 beyond ASCII that no terminal
// takes for a command (U+0080 to U+009F are); 0 if they are none.
size_t plain_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  return lead == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0 ? 0 : length;
}

}  // namespace

std::string terminal_lines(std::string_view prefix, std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::string out(prefix);
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    const size_t length = byte < 0x80 ? 1 : plain_character(text);
    if (byte == '\n') {
      out += '\n';
      out += prefix;
    } else if (length == 0 || (byte < 0x20 && byte != '\t') || byte == 0x7f) {
      put_escaped(out, byte);
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  out += '\n';
  return out;
}

}  // namespace hvd
