#include "launcher/terminal_text.h"

namespace hvd {

std::string terminal_lines(std::string_view prefix, std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::string out(prefix);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += '\n';
      out += prefix;
    } else if ((byte < 0x20 && c != '\t') || byte == 0x7f) {
      constexpr char kDigits[] = "0123456789abcdef";
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += c;
    }
  }
  out += '\n';
  return out;
}

}  // namespace hvd
