#include "base/fd.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace hvd {

void Fd::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_error("cannot make a pipe", errno);
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

void set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  HVD_CHECK(flags >= 0);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

Status write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno_error("cannot write", errno);
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return Ok{};
}

namespace {

enum class Owner { anybody, us };

// Why the file behind `fd` is not to be read; empty if it is.
std::string objection(int fd, Owner owner) {
  struct stat st;
  if (fstat(fd, &st) != 0) return std::strerror(errno);
  if (S_ISDIR(st.st_mode)) return "it is a directory, not a file";
  if (!S_ISREG(st.st_mode)) return "it is not a regular file";
  if (owner == Owner::anybody) return "";
  if (st.st_uid != geteuid()) return "it belongs to another user";
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "others can write it";
  return "";
}

Result<std::string> read_whole(const std::string& path, size_t limit, Owner owner) {
  // O_NONBLOCK so that opening a FIFO nobody writes to does not wait.
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return errno_error("cannot read " + path, errno);
  const std::string why = objection(fd.get(), owner);
  if (!why.empty()) return Error{"cannot read " + path + ": " + why};
  std::string text;
  char block[65536];
  while (true) {
    const ssize_t n = read(fd.get(), block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("cannot read " + path, errno);
    if (n == 0) return text;
    text.append(block, static_cast<size_t>(n));
    if (text.size() > limit) {
      return Error{"cannot read " + path + ": it holds more than " + std::to_string(limit) +
                   " bytes"};
    }
  }
}

}  // namespace

Result<std::string> read_file(const std::string& path, size_t limit) {
  return read_whole(path, limit, Owner::anybody);
}

Result<std::string> read_own_file(const std::string& path, size_t limit) {
  return read_whole(path, limit, Owner::us);
}

Status sync_folder(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || fsync(fd.get()) != 0) return errno_error("cannot sync " + path, errno);
  return Ok{};
}

namespace {

Status sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return sync_folder(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace

Status replace_file(const std::string& path, std::string_view bytes, int mode) {
  const std::string draft = path + ".tmp-" + std::to_string(getpid());
  {
    const Fd fd(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode));
    if (!fd) return errno_error("cannot write " + draft, errno);
    const Status written = write_all(fd.get(), bytes);
    if (!written || fsync(fd.get()) != 0) {
      const int number = errno;
      unlink(draft.c_str());
      return errno_error("cannot write " + draft, number);
    }
  }
  if (rename(draft.c_str(), path.c_str()) != 0) {
    const int number = errno;
    unlink(draft.c_str());
    return errno_error("cannot write " + path, number);
  }
  return sync_folder_of(path);
}

namespace {

enum class Lasting { no, yes };

// A folder that may be written to and not be read cannot be synced.
Status sync_name(const std::string& path) {
  const Status synced = sync_folder_of(path);
  return synced || errno == EACCES ? Status(Ok{}) : synced;
}

Status make_each_folder(const std::string& path, int mode, Lasting lasting) {
  for (size_t end = 1; end != std::string::npos;) {
    end = path.find('/', end);
    const std::string part = path.substr(0, end);
    const bool made = mkdir(part.c_str(), static_cast<mode_t>(mode)) == 0;
    if (!made && errno != EEXIST) return errno_error("cannot make the folder " + part, errno);
    if (made && lasting == Lasting::yes) {
      const Status synced = sync_name(part);
      if (!synced) return synced;
    }
    if (end != std::string::npos) ++end;
  }
  struct stat st;
  if (stat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) {
    return Error{"cannot make the folder " + path + ": something else has that name"};
  }
  return Ok{};
}

}  // namespace

Status make_folders(const std::string& path, int mode) {
  return make_each_folder(path, mode, Lasting::no);
}

Status make_lasting_folders(const std::string& path, int mode) {
  return make_each_folder(path, mode, Lasting::yes);
}

}  // namespace hvd
