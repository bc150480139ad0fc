// A channel over SSH, with libssh: no ssh program, no prompt, host keys strict. Dialling goes on in
// a thread (ssh_dial); once the command runs, all is done on the loop, without waiting.
//
// The channel is refused when dialling fails, ended when the far side reports that the command
// ended, lost when the connection breaks.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "launcher/channel.h"
#include "launcher/ssh_dial.h"
#include "launcher/ssh_link.h"
#include "launcher/ssh_target.h"

namespace hvd {

class SshChannel final : public Channel {
 public:
  // Dials at once. The channel is open or closed by the target's deadline; it is closed earlier if
  // a phase of the dialling (name, connection, banner, keys, login, start) takes 30 s.
  explicit SshChannel(SshTarget target);
  // Closes the connection, without waiting for anybody.
  ~SshChannel() override;

  ChannelState state() const override { return state_; }
  ChannelEnd end() const override { return end_; }
  const std::string& reason() const override { return reason_; }
  // Closed for a reason that the program ssh may do better with.
  bool openssh_may_do() const { return openssh_may_do_; }
  int fd() const override;
  Interest interest() const override;
  std::optional<Time> deadline() const override;
  std::string waiting_for(Time now) const override;
  void advance(Time now) override;
  void send(std::string_view bytes) override;
  size_t unsent() const override;
  std::string take_received() override;
  std::string take_diagnostics() override;
  std::string peer_address() const override { return peer_address_; }
  std::string own_address() const override { return own_address_; }

 private:
  void advance_dial(Time now);
  void advance_link(Time now);
  void close(ChannelEnd end, std::string reason);
  std::string out_of_time(const Dial::Progress& progress, Time now) const;

  const std::string label_;
  const Time started_, start_deadline_;
  ChannelState state_ = ChannelState::opening;
  ChannelEnd end_ = ChannelEnd::refused;
  bool openssh_may_do_ = false;
  std::string reason_;
  // Kept until the owner has seen that fd() is another one now.
  std::shared_ptr<Dial> dial_;
  std::unique_ptr<SshLink> link_;
  SendQueue queue_;
  std::optional<Time> linger_end_;
  // Something arrived outside of advance(), with no readiness to follow: advance() is due.
  bool news_ = false;
  std::string peer_address_, own_address_;
};

}  // namespace hvd
