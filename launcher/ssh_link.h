// One SSH connection with one command at its far end, as a byte stream: libssh's session and
// channel, used without ever waiting. A thread that dials builds it (ssh_dial), the loop then uses
// it (ssh_channel); at any time it belongs to one thread.
#pragma once

#include <libssh/callbacks.h>
#include <libssh/libssh.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/poller.h"

namespace hvd {

// Once before the first session; later calls do nothing.
void start_libssh();

// Bytes on their way out, taken from the front.
class SendQueue {
 public:
  void add(std::string_view bytes) { bytes_.append(bytes); }
  std::string_view rest() const { return std::string_view(bytes_).substr(sent_); }
  void drop_front(size_t count);
  void clear();

 private:
  std::string bytes_;
  size_t sent_ = 0;
};

class SshLink {
 public:
  enum class Life {
    living,
    closed,  // the far side closed the channel: the command ended
    lost,    // the connection is gone
  };

  SshLink();
  ~SshLink();
  SshLink(const SshLink&) = delete;
  SshLink& operator=(const SshLink&) = delete;

  ssh_session session() const { return session_; }
  // The connection ended, by either side or by an error.
  bool broken() const;
  // What libssh says about its last failure.
  std::string error() const;
  // Sets an option; false if libssh refuses the value.
  bool set(ssh_options_e which, const void* value) {
    return ssh_options_set(session_, which, value) == SSH_OK;
  }
  // A string option as set or configured; empty if it is not.
  std::string text_option(ssh_options_e which) const;

  // Takes the connected socket that the session speaks over.
  void attach(Fd socket);
  int socket() const { return socket_.get(); }
  Interest interest() const;

  // ssh_connect, without the blocking socket that libssh leaves behind.
  int connect();
  // Opens the channel and runs the command: SSH_AGAIN until done, then SSH_OK or SSH_ERROR.
  int start_command(const std::string& command);

  // Takes what arrived and hands out what fits. Bounded: call it again while the socket is ready.
  void pump(SendQueue& queue);
  // Hands out what fits. It may take in what arrived, too: see `received` and life() afterwards.
  void hand_out(SendQueue& queue);

  Life life() const { return life_; }
  // How the command ended, once known: "exit status 3", "SIGKILL".
  const std::optional<std::string>& ending() const { return ending_; }
  // Bytes taken from the queue that may still wait for the socket.
  size_t unflushed() const;

  std::string received;
  std::string diagnostics;

 private:
  void install_callbacks();

  Fd socket_;
  ssh_session session_;
  ssh_channel channel_ = nullptr;
  ssh_event event_ = nullptr;
  ssh_channel_callbacks_struct channel_callbacks_{};
  size_t last_piece_ = 0;
  bool channel_open_ = false;
  Life life_ = Life::living;
  std::optional<std::string> ending_;
};

}  // namespace hvd
