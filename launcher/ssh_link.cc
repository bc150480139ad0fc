#include "launcher/ssh_link.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

namespace hvd {

namespace {

// Packets taken in one pump(), so that one talkative host does not keep the loop from the others.
constexpr int kReadsPerPump = 64;
// Most bytes given to libssh at once; it keeps what the socket does not take.
constexpr size_t kWritePiece = 256u << 10;

SshLink& self(void* userdata) {
  return *static_cast<SshLink*>(userdata);
}

int on_data(ssh_session, ssh_channel, void* data, uint32_t size, int is_stderr, void* userdata) {
  SshLink& link = self(userdata);
  (is_stderr != 0 ? link.diagnostics : link.received).append(static_cast<char*>(data), size);
  return static_cast<int>(size);
}

}  // namespace

void SendQueue::drop_front(size_t count) {
  sent_ += count;
  // What held a whole program once need not hold its room.
  if (sent_ == bytes_.size()) return clear();
  // Moving what is left is paid for by at least as many bytes sent.
  if (sent_ * 2 < bytes_.size()) return;
  bytes_.erase(0, sent_);
  sent_ = 0;
}

void SendQueue::clear() {
  if (bytes_.capacity() > kWritePiece) bytes_ = {};
  bytes_.clear();
  sent_ = 0;
}

SshLink::SshLink() {
  start_libssh();
  session_ = ssh_new();
  HVD_CHECK(session_ != nullptr);
  ssh_set_blocking(session_, 0);
}

SshLink::~SshLink() {
  // No ssh_disconnect: closing the socket says the same and never has anything to wait for.
  if (event_ != nullptr) {
    ssh_event_remove_session(event_, session_);
    ssh_event_free(event_);
  }
  ssh_free(session_);
}

bool SshLink::broken() const {
  return (ssh_get_status(session_) & (SSH_CLOSED | SSH_CLOSED_ERROR)) != 0;
}

std::string SshLink::error() const {
  return ssh_get_error(session_);
}

std::string SshLink::text_option(ssh_options_e which) const {
  char* value = nullptr;
  if (ssh_options_get(session_, which, &value) != SSH_OK) return {};
  const std::string text = value;
  ssh_string_free_char(value);
  return text;
}

void SshLink::attach(Fd socket) {
  socket_ = std::move(socket);
  // libssh closes its descriptor when it likes to; ours stays valid for whoever polls it.
  const int copy = fcntl(socket_.get(), F_DUPFD_CLOEXEC, 3);
  HVD_CHECK(copy >= 0);
  ssh_options_set(session_, SSH_OPTIONS_FD, &copy);
}

Interest SshLink::interest() const {
  return {true, (ssh_get_poll_flags(session_) & SSH_WRITE_PENDING) != 0};
}

size_t SshLink::unflushed() const {
  return (ssh_get_status(session_) & SSH_WRITE_PENDING) != 0 ? last_piece_ : 0;
}

int SshLink::connect() {
  const int rc = ssh_connect(session_);
  set_nonblocking(socket_.get());
  return rc;
}

void SshLink::install_callbacks() {
  channel_callbacks_.userdata = this;
  channel_callbacks_.channel_data_function = on_data;
  channel_callbacks_.channel_close_function = [](ssh_session, ssh_channel, void* userdata) {
    self(userdata).life_ = Life::closed;
  };
  channel_callbacks_.channel_exit_status_function = [](ssh_session, ssh_channel, int status,
                                                       void* userdata) {
    self(userdata).ending_ = "exit status " + std::to_string(status);
  };
  channel_callbacks_.channel_exit_signal_function =
      [](ssh_session, ssh_channel, const char* name, int, const char*, const char*,
         void* userdata) { self(userdata).ending_ = std::string("SIG") + name; };
  ssh_callbacks_init(&channel_callbacks_);
  ssh_set_channel_callbacks(channel_, &channel_callbacks_);
}

int SshLink::start_command(const std::string& command) {
  if (channel_ == nullptr) {
    channel_ = ssh_channel_new(session_);
    if (channel_ == nullptr) return SSH_ERROR;
    install_callbacks();
  }
  if (!channel_open_) {
    const int rc = ssh_channel_open_session(channel_);
    if (rc != SSH_OK) return rc;
    channel_open_ = true;
  }
  const int rc = ssh_channel_request_exec(channel_, command.c_str());
  if (rc == SSH_OK) {
    // Only an event pumps packets whatever the channel's own buffers hold.
    event_ = ssh_event_new();
    HVD_CHECK(event_ != nullptr && ssh_event_add_session(event_, session_) == SSH_OK);
  }
  return rc;
}

void SshLink::pump(SendQueue& queue) {
  for (int i = 0; i < kReadsPerPump && life_ == Life::living; ++i) {
    const int rc = ssh_event_dopoll(event_, 0);
    if (life_ == Life::living && (rc == SSH_ERROR || broken())) {
      life_ = Life::lost;
    }
    if (rc != SSH_OK) break;
  }
  hand_out(queue);
}

void SshLink::hand_out(SendQueue& queue) {
  while (life_ == Life::living && !queue.rest().empty()) {
    if ((ssh_get_status(session_) & SSH_WRITE_PENDING) != 0) return;
    const size_t window = ssh_channel_window_size(channel_);
    const size_t size = std::min({queue.rest().size(), window, kWritePiece});
    if (size == 0) return;
    const int taken = ssh_channel_write(channel_, queue.rest().data(), static_cast<uint32_t>(size));
    if (taken < 0) {
      if (life_ == Life::living && broken()) life_ = Life::lost;
      return;
    }
    if (taken == 0) return;
    queue.drop_front(static_cast<size_t>(taken));
    last_piece_ = static_cast<size_t>(taken);
  }
}

}  // namespace hvd
