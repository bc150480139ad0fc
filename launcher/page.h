// What the reader of one descriptor sees: lines, each of one stream, each behind its prefix. A line
// whose end has not come is shown as far as it is and goes on in place, unless another stream has
// something to say: then it ends there, and its rest begins with the prefix again.
//
// On a terminal a carriage return goes back to the line's begin, as the rank meant it, and the
// prefix is written anew. A reader that is no terminal gets a line for each of them. Without a
// prefix bytes are passed as they are. Pure but for the wall clock of timestamps.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

// How one stream's lines look.
struct LineStyle {
  std::string prefix;
  bool timestamps = false;
  bool raw() const { return prefix.empty() && !timestamps; }
};

class Page {
 public:
  explicit Page(bool terminal) : terminal_(terminal) {}

  // Appends a piece of LineCutter to what is to be written. `stream` is known by its address.
  void put(std::string& out, const LineStyle& stream, std::string_view piece);
  // The stream says no more: its open line ends, but for one without a prefix.
  void finish(std::string& out, const LineStyle& stream);
  // Text that is whole lines follows: whoever's line is open, it ends here.
  void close_line(std::string& out);

 private:
  void begin(std::string& out, const LineStyle& stream);

  const bool terminal_;
  const LineStyle gone_;             // whose line it is when its stream is gone
  const LineStyle* open_ = nullptr;  // whose line has no end yet
  bool at_begin_ = false;            // the open line's end was a return
};

}  // namespace hvd
