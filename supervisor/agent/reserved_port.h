// A TCP port that the system gave, bound from then on: it is told to others only while nobody else
// can have it. The agent listens on it itself, or keeps it for a process on this host that will
// (MASTER_PORT).
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
  // From now on a listener that sets SO_REUSEADDR gets the port: who was told its number. The
  // system gives it to nobody by chance.
  void lend();
  // Anybody may have it.
  void release() { socket_.reset(); }
  // Gives the socket away, to listen on it.
  Fd take_socket() { return std::move(socket_); }

 private:
  Fd socket_;
  uint16_t number_ = 0;
};

}  // namespace hvd
