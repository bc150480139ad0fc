// An owned file descriptor, and the few calls on descriptors that every process here makes.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace hvd {

// Owns one descriptor and closes it.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  explicit operator bool() const { return valid(); }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read, write;
};
// Both ends close on exec.
Result<Pipe> make_pipe();

void set_nonblocking(int fd);

// Writes all of `bytes` to a blocking descriptor, or says errno. Interrupted calls go on.
Status write_all(int fd, std::string_view bytes);

// The whole of a regular file of at most `limit` bytes. The error names the path; a directory,
// device, FIFO or larger file is refused without being read.
Result<std::string> read_file(const std::string& path, size_t limit);

// The same for a file that must be ours: refused if another user owns it or can write it.
Result<std::string> read_own_file(const std::string& path, size_t limit);

// Replaces `path` by a file with these bytes: written beside it, fsynced, renamed, and the folder
// fsynced. `mode` is the file's.
Status replace_file(const std::string& path, std::string_view bytes, int mode);

// Puts a folder's entries on disk.
Status sync_folder(const std::string& path);

// Makes the folder and its parents, with `mode` for those it makes.
Status make_folders(const std::string& path, int mode);

// The same, with the names of those it makes on disk.
Status make_lasting_folders(const std::string& path, int mode);

}  // namespace hvd
