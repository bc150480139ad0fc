// A TCP port kept for another process on this host that will listen on it (MASTER_PORT): bound
// with SO_REUSEADDR and not listening, so that nothing is given it by chance, while a listener that
// sets SO_REUSEADDR itself gets it.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/fd.h"

namespace hvd {

class ReservedPort {
 public:
  // Takes a free port on all addresses, IPv6 too where this host has it.
  static Result<ReservedPort> take();

  uint16_t number() const { return number_; }
  // Gives the socket away, to listen on it.
  Fd take_socket() { return std::move(socket_); }

 private:
  Fd socket_;
  uint16_t number_ = 0;
};

}  // namespace hvd
