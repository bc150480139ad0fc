#include "supervisor/agent/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace hvd {

Result<Fd> bind_unix_socket(const std::string& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Error{"the socket's path " + path + " is too long"};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  Fd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return errno_error("cannot make the socket " + path, errno);
  }
  return fd;
}

}  // namespace hvd
