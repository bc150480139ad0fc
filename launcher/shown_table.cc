#include "launcher/shown_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "base/fd.h"

namespace hvd {

Result<ShownTable> ShownTable::open(const std::string& path, uint32_t ranks) {
  ShownTable table;
  table.ranks_ = ranks;
  table.size_ = size_t{ranks} * 4 * sizeof(Slot);
  const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return errno_error("cannot write " + path, errno);
  // Blocks that are missing later would end this process by a signal.
  const int error = posix_fallocate(fd.get(), 0, static_cast<off_t>(table.size_));
  if (error != 0) return errno_error("cannot write " + path, error);
  void* at = mmap(nullptr, table.size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return errno_error("cannot map " + path, errno);
  table.slots_ = static_cast<Slot*>(at);
  return table;
}

ShownTable::ShownTable(ShownTable&& other) noexcept
    : slots_(std::exchange(other.slots_, nullptr)), size_(other.size_), ranks_(other.ranks_) {}

ShownTable& ShownTable::operator=(ShownTable&& other) noexcept {
  std::swap(slots_, other.slots_);
  std::swap(size_, other.size_);
  std::swap(ranks_, other.ranks_);
  return *this;
}

ShownTable::~ShownTable() {
  if (slots_ != nullptr) munmap(slots_, size_);
}

// Output of an attempt may still be written when the next one begins.
ShownTable::Slot* ShownTable::slot(uint32_t attempt, uint32_t rank, Stream stream) const {
  if (slots_ == nullptr || rank >= ranks_) return nullptr;
  return slots_ + (size_t{attempt % 2} * ranks_ + rank) * 2 + static_cast<size_t>(stream);
}

uint64_t ShownTable::shown(uint32_t attempt, uint32_t rank, Stream stream) const {
  const Slot* at = slot(attempt, rank, stream);
  return at != nullptr && at->attempt == attempt ? at->bytes : 0;
}

uint64_t* ShownTable::begin(uint32_t attempt, uint32_t rank, Stream stream, uint64_t bytes) {
  Slot* at = slot(attempt, rank, stream);
  if (at == nullptr) return nullptr;
  at->bytes = bytes;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  at->attempt = attempt;
  return &at->bytes;
}

}  // namespace hvd
