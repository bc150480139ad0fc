// Preloaded into agents and workers of a lab: makes single calls fail on the checkpoint folder, and
// moves the wall clock. What it is to do stands in files under /srv/lab/break, which come and go
// while the programs run:
//
//   CALL[.WHO]   "ERRNO SKIP ALWAYS": that call fails with ERRNO, after SKIP others of this
//   process.
//                Unless ALWAYS, the file is removed by the one process that it hits. WHO is a rank
//                or "agent"; without it, it is whoever comes first.
//   clock[.HOST] seconds to add to the time of day
//
// CALL is one of open (for writing), write, fsync, rename, close, mkdir, read (opening for
// reading).
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <initializer_list>

namespace {

template <class Function>
Function next(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static const auto real = next(&name, #name)

using Open = int (*)(const char*, int, ...);

// No memory is asked for here: this may be a child between fork and exec.
struct Path {
  char text[PATH_MAX + NAME_MAX] = "";
};

bool read_control(const char* name, const char* of, Path& path, char* text, size_t size) {
  static const auto real_open = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "open"));
  static const auto real_close = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "close"));
  std::snprintf(path.text, sizeof path.text, "/srv/lab/break/%s%s%s", name, *of ? "." : "", of);
  const int saved = errno;
  const int fd = real_open(path.text, O_RDONLY | O_CLOEXEC);
  ssize_t n = -1;
  if (fd >= 0) {
    n = read(fd, text, size - 1);
    real_close(fd);
  }
  errno = saved;
  if (n > 0) text[n] = '\0';
  return n > 0;
}

enum Call { kOpen, kWrite, kFsync, kRename, kClose, kMkdir, kRead, kCalls };
constexpr const char* kNames[kCalls] = {"open",  "write", "fsync", "rename",
                                        "close", "mkdir", "read"};

// Whether this call is to fail; errno is set then.
bool broken(Call call, const char* path) {
  if (path == nullptr || std::strstr(path, "/ckpt") == nullptr) return false;
  static int seen[kCalls];
  const char* rank = std::getenv("HVD_RANK");
  for (const char* of : {"", rank != nullptr ? rank : "agent"}) {
    char text[64];
    Path control;
    int number = 0, skip = 0, always = 0;
    if (!read_control(kNames[call], of, control, text, sizeof text) ||
        std::sscanf(text, "%d %d %d", &number, &skip, &always) != 3) {
      continue;
    }
    if (seen[call]++ < skip) return false;
    if (always == 0 && unlink(control.text) != 0) continue;  // it hits another process
    seen[call] = 0;
    errno = number;
    return true;
  }
  return false;
}

// The path of a name in an open folder, or of an open file.
Path path_at(int dir, const char* name) {
  Path path;
  size_t length = 0;
  if (dir != AT_FDCWD && (name == nullptr || name[0] != '/')) {
    char link[64];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    const int saved = errno;
    const ssize_t n = readlink(link, path.text, PATH_MAX);
    errno = saved;
    length = n > 0 ? static_cast<size_t>(n) : 0;
  }
  if (name != nullptr) {
    std::snprintf(path.text + length, sizeof path.text - length, "%s%s", length > 0 ? "/" : "",
                  name);
  }
  return path;
}

bool broken_at(Call call, int dir, const char* name) {
  return broken(call, path_at(dir, name).text);
}

bool open_fails(int dir, const char* name, int flags) {
  const bool writes = (flags & (O_CREAT | O_WRONLY | O_RDWR)) != 0;
  return broken_at(writes ? kOpen : kRead, dir, name);
}

long clock_offset() {
  char host[64] = "", text[64];
  Path control;
  gethostname(host, sizeof host - 1);
  const bool moved = read_control("clock", host, control, text, sizeof text) ||
                     read_control("clock", "", control, text, sizeof text);
  return moved ? std::atol(text) : 0;
}

}  // namespace

extern "C" {

#define HVD_OPEN(name)                                                        \
  int name(const char* path, int flags, ...) {                                \
    static const auto real = reinterpret_cast<Open>(dlsym(RTLD_NEXT, #name)); \
    va_list rest;                                                             \
    va_start(rest, flags);                                                    \
    const mode_t mode = va_arg(rest, mode_t);                                 \
    va_end(rest);                                                             \
    return open_fails(AT_FDCWD, path, flags) ? -1 : real(path, flags, mode);  \
  }
HVD_OPEN(open)
HVD_OPEN(open64)

#define HVD_OPENAT(name)                                                                \
  int name(int dir, const char* path, int flags, ...) {                                 \
    static const auto real =                                                            \
        reinterpret_cast<int (*)(int, const char*, int, ...)>(dlsym(RTLD_NEXT, #name)); \
    va_list rest;                                                                       \
    va_start(rest, flags);                                                              \
    const mode_t mode = va_arg(rest, mode_t);                                           \
    va_end(rest);                                                                       \
    return open_fails(dir, path, flags) ? -1 : real(dir, path, flags, mode);            \
  }
HVD_OPENAT(openat)
HVD_OPENAT(openat64)

ssize_t write(int fd, const void* bytes, size_t count) {
  NEXT(write);
  return broken_at(kWrite, fd, nullptr) ? -1 : real(fd, bytes, count);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  NEXT(writev);
  return broken_at(kWrite, fd, nullptr) ? -1 : real(fd, parts, count);
}
ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) {
  NEXT(pwrite);
  return broken_at(kWrite, fd, nullptr) ? -1 : real(fd, bytes, count, at);
}
int fsync(int fd) {
  NEXT(fsync);
  return broken_at(kFsync, fd, nullptr) ? -1 : real(fd);
}
int fdatasync(int fd) {
  NEXT(fdatasync);
  return broken_at(kFsync, fd, nullptr) ? -1 : real(fd);
}
int close(int fd) {
  NEXT(close);
  if (!broken_at(kClose, fd, nullptr)) return real(fd);
  const int number = errno;
  real(fd);  // as Linux: the descriptor is gone all the same
  errno = number;
  return -1;
}
int rename(const char* from, const char* to) {
  NEXT(rename);
  return broken(kRename, to) ? -1 : real(from, to);
}
int renameat(int from_dir, const char* from, int to_dir, const char* to) {
  NEXT(renameat);
  return broken_at(kRename, to_dir, to) ? -1 : real(from_dir, from, to_dir, to);
}
int renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) {
  NEXT(renameat2);
  return broken_at(kRename, to_dir, to) ? -1 : real(from_dir, from, to_dir, to, flags);
}
int mkdir(const char* path, mode_t mode) {
  NEXT(mkdir);
  return broken(kMkdir, path) ? -1 : real(path, mode);
}
int mkdirat(int dir, const char* path, mode_t mode) {
  NEXT(mkdirat);
  return broken_at(kMkdir, dir, path) ? -1 : real(dir, path, mode);
}

int clock_gettime(clockid_t clock, timespec* time) {
  NEXT(clock_gettime);
  const int result = real(clock, time);
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += clock_offset();
  return result;
}
int gettimeofday(timeval* time, void* zone) {
  static const auto real =
      reinterpret_cast<int (*)(timeval*, void*)>(dlsym(RTLD_NEXT, "gettimeofday"));
  const int result = real(time, zone);
  if (result == 0) time->tv_sec += clock_offset();
  return result;
}
time_t time(time_t* out) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
