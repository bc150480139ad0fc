// How much of each stream of the ranks has been shown, in a file that is mapped: the writer thread
// notes it behind each write, and a launcher that is killed loses nothing of it. What the kill
// found being written is shown again by the next launcher, and nothing else.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/message.h"

namespace hvd {

class ShownTable {
 public:
  // Without a file: nothing is noted.
  ShownTable() = default;
  // Makes the file for so many ranks, or takes up the one that is there.
  static Result<ShownTable> open(const std::string& path, uint32_t ranks);
  ShownTable(ShownTable&& other) noexcept;
  ShownTable& operator=(ShownTable&& other) noexcept;
  ~ShownTable();

  // Of the newest two attempts: bytes that were shown, 0 of one that is not known.
  uint64_t shown(uint32_t attempt, uint32_t rank, Stream stream) const;
  // Where the bytes of a stream are noted, which begins with so many; null without a file.
  uint64_t* begin(uint32_t attempt, uint32_t rank, Stream stream, uint64_t bytes);

 private:
  struct Slot {
    uint64_t attempt, bytes;
  };
  Slot* slot(uint32_t attempt, uint32_t rank, Stream stream) const;

  Slot* slots_ = nullptr;
  size_t size_ = 0;  // in bytes
  uint32_t ranks_ = 0;
};

}  // namespace hvd
