// Our standard input on its way to the one rank that was given it (--stdin). A thread of its own
// reads: a terminal, a pipe or a file may be slow, and the descriptor is shared with whoever
// started us, so it is never made non-blocking. It reads only what the rank has room for.
//
// A terminal is read while we are in its foreground; in the background it is left to others, and
// nobody is stopped for touching it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace hvd {

class StdinReader {
 public:
  // Begins to read, at most `window` bytes before grant().
  explicit StdinReader(uint64_t window);
  // Does not wait for a read that goes on.
  ~StdinReader();
  StdinReader(const StdinReader&) = delete;
  StdinReader& operator=(const StdinReader&) = delete;

  // Readable when take() has news.
  int fd() const;
  struct Piece {
    std::string bytes;
    bool last = false;  // nothing will follow; told once
  };
  Piece take();
  // The rank took so many of the bytes that take() gave.
  void grant(uint64_t bytes);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace hvd
