#include "launcher/page.h"

#include "base/time.h"

namespace hvd {

void Page::begin(std::string& out, const LineStyle& stream) {
  if (open_ == &stream && !at_begin_) return;
  if (open_ != &stream) close_line(out);
  if (stream.timestamps) {
    out += wall_clock_stamp();
    out += ' ';
  }
  out += stream.prefix;
}

void Page::put(std::string& out, const LineStyle& stream, std::string_view piece) {
  // A bar often begins with a return, where there is nothing to overwrite yet.
  if (piece == "\r" && !stream.raw() && (open_ != &stream || at_begin_)) return;
  const char last = piece.back();
  if (last == '\r' && !terminal_ && !stream.raw()) {
    begin(out, stream);
    out += piece.substr(0, piece.size() - 1);
    out += '\n';
    open_ = nullptr;
    return;
  }
  begin(out, stream);
  out += piece;
  open_ = last == '\n' ? nullptr : &stream;
  at_begin_ = last == '\r';
}

void Page::finish(std::string& out, const LineStyle& stream) {
  if (open_ != &stream) return;
  if (stream.raw()) {
    open_ = &gone_;
  } else {
    close_line(out);
  }
}

void Page::close_line(std::string& out) {
  if (open_ != nullptr) out += '\n';
  open_ = nullptr;
}

}  // namespace hvd
