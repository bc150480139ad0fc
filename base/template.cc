#include "base/template.h"

namespace hvd {

std::string fill_template(std::string_view text, const std::map<std::string, std::string>& values) {
  std::string out;
  while (!text.empty()) {
    const size_t open = text.find('{');
    out += text.substr(0, open);
    if (open == std::string_view::npos) break;
    text.remove_prefix(open);
    const size_t close = text.find('}');
    const auto found = close == std::string_view::npos
                           ? values.end()
                           : values.find(std::string(text.substr(1, close - 1)));
    const size_t length = found == values.end() ? 1 : close + 1;
    out += found == values.end() ? std::string_view("{") : std::string_view(found->second);
    text.remove_prefix(length);
  }
  return out;
}

void replace_all(std::string& text, std::string_view what, const std::string& by) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

}  // namespace hvd
