// A bound Unix socket.
#pragma once

#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace hvd {

// A non-blocking socket of `type` (SOCK_STREAM, SOCK_DGRAM) bound to `path`, which nothing has yet.
Result<Fd> bind_unix_socket(const std::string& path, int type);

}  // namespace hvd
