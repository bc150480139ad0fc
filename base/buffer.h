// Bytes on their way: put in at the end, taken from the front, neither zeroed nor moved more than
// needed. For what streams through a process in large amounts.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>

namespace hvd {

class Buffer {
 public:
  size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  // Valid until the next room() or append().
  std::string_view view() const { return {bytes_.get() + begin_, size()}; }

  // Where at least `least` bytes can be written behind the content; grow() makes them part of it.
  char* room(size_t least) {
    if (capacity_ - end_ < least) make_room(least);
    return bytes_.get() + end_;
  }
  void grow(size_t bytes) { end_ += bytes; }

  void append(std::string_view bytes) {
    if (bytes.empty()) return;
    std::memcpy(room(bytes.size()), bytes.data(), bytes.size());
    grow(bytes.size());
  }
  // The first `bytes` of the content go.
  void drop(size_t bytes) {
    begin_ += bytes;
    if (begin_ == end_) clear();
  }
  void clear() {
    begin_ = end_ = 0;
    if (capacity_ <= kKept) return;
    bytes_.reset();
    capacity_ = 0;
  }

 private:
  // An empty buffer keeps no more than this for its next use.
  static constexpr size_t kKept = 1u << 20;

  void make_room(size_t least) {
    // Moved to the front if that is cheap, else to a larger place.
    if (begin_ >= size() && capacity_ - size() >= least) {
      std::memmove(bytes_.get(), bytes_.get() + begin_, size());
      end_ -= begin_;
      begin_ = 0;
    } else {
      reserve(size() + (size() > least ? size() : least));
    }
  }
  void reserve(size_t capacity) {
    auto bytes = std::make_unique_for_overwrite<char[]>(capacity);
    if (!empty()) std::memcpy(bytes.get(), bytes_.get() + begin_, size());
    bytes_ = std::move(bytes);
    end_ -= begin_;
    begin_ = 0;
    capacity_ = capacity;
  }

  std::unique_ptr<char[]> bytes_;
  size_t begin_ = 0, end_ = 0, capacity_ = 0;
};

}  // namespace hvd
