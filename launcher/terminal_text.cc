#include "launcher/terminal_text.h"

#include <algorithm>

#include "launcher/host_spec.h"

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
  const std::string_view character = text.substr(0, lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2);
  const bool command =
      lead == 0xc2 && character.size() == 2 && static_cast<unsigned char>(character[1]) < 0xa0;
  return command || !is_utf8(character) ? 0 : character.size();
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
