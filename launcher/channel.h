// One conversation with one host's agent process: a byte stream both ways, whatever carries it.
// The owner polls the descriptor, calls advance() when it is ready or the deadline has passed, and
// takes what arrived. Nothing here blocks. What the bytes mean is no concern of a channel.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/poller.h"
#include "base/time.h"

namespace hvd {

enum class ChannelState { opening, open, closed };

// Why a channel is closed.
enum class ChannelEnd {
  refused,  // it never opened: the far side or the network said no, or a phase took too long
  ended,    // the process at the far end ended, over a living connection
  lost,     // the connection broke; what the far process does is unknown
};

class Channel {
 public:
  virtual ~Channel() = default;

  virtual ChannelState state() const = 0;
  // Meaningful when closed: how, and a sentence for the user that names the host and the reason.
  virtual ChannelEnd end() const = 0;
  virtual const std::string& reason() const = 0;

  // The descriptor to poll, -1 if there is none now. It may change during advance() while opening;
  // the channel closes it, and says so by another value here before the number can be reused.
  virtual int fd() const = 0;
  virtual Interest interest() const = 0;
  virtual std::optional<Time> deadline() const = 0;
  // While opening: what holds it up, in a sentence that names the host; empty if that is not known.
  virtual std::string waiting_for(Time) const { return {}; }
  virtual void advance(Time now) = 0;

  // Queues bytes; they leave in order as the far side takes them. Dropped when closed.
  virtual void send(std::string_view bytes) = 0;
  virtual size_t unsent() const = 0;

  // What arrived since the last call: the far process's stdout, and its stderr.
  virtual std::string take_received() = 0;
  virtual std::string take_diagnostics() = 0;

  // Numeric addresses of both ends of the connection; empty before it is there, or if there is
  // none.
  virtual std::string peer_address() const = 0;
  virtual std::string own_address() const = 0;
};

}  // namespace hvd
