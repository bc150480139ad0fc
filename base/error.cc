#include "base/error.h"

#include <cstdio>
#include <cstring>

namespace hvd {

Error errno_error(const std::string& what, int number) {
  return Error{what + ": " + std::strerror(number)};
}

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "hvdlaunch: internal error: %s is false at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace hvd
