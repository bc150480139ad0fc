#include "launcher/output.h"

#include <cstring>

#include "base/time.h"

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

void LineCutter::put_line(std::string& out, std::string_view line) const {
  if (timestamps_) {
    out += wall_clock_stamp();
    out += ' ';
  }
  out += prefix_;
  out += line;
  out += '\n';
}

std::string LineCutter::feed(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  while (!bytes.empty()) {
    const void* newline = std::memchr(bytes.data(), '\n', bytes.size());
    if (newline == nullptr) {
      partial_ += bytes;
      break;
    }
    const size_t length = static_cast<size_t>(static_cast<const char*>(newline) - bytes.data());
    if (partial_.empty()) {
      put_line(out, bytes.substr(0, length));
    } else {
      partial_ += bytes.substr(0, length);
      put_line(out, partial_);
      partial_.clear();
    }
    bytes.remove_prefix(length + 1);
  }
  if (partial_.size() >= kLongestLine) {
    put_line(out, partial_);
    partial_.clear();
  }
  return out;
}

std::string LineCutter::finish() {
  std::string out;
  if (!partial_.empty()) put_line(out, partial_);
  partial_.clear();
  return out;
}

}  // namespace hvd
