#include "launcher/ssh_route.h"

#include <utility>

#include "launcher/command_channel.h"
#include "launcher/openssh.h"
#include "launcher/ssh_channel.h"
#include "launcher/ssh_lookup.h"

namespace hvd {

namespace {

class SshRoute final : public Channel {
 public:
  explicit SshRoute(SshTarget target)
      : target_(std::move(target)),
        first_(std::make_unique<SshChannel>(target_)),
        now_used_(first_.get()) {}

  ChannelState state() const override { return now_used_->state(); }
  ChannelEnd end() const override { return now_used_->end(); }
  const std::string& reason() const override {
    return trouble_.empty() ? now_used_->reason() : trouble_;
  }
  int fd() const override { return now_used_->fd(); }
  Interest interest() const override { return now_used_->interest(); }
  std::optional<Time> deadline() const override { return now_used_->deadline(); }
  void advance(Time now) override;
  void send(std::string_view bytes) override {
    if (!second_ && state() == ChannelState::opening) early_ += bytes;
    now_used_->send(bytes);
  }
  size_t unsent() const override { return now_used_->unsent(); }
  std::string take_received() override { return now_used_->take_received(); }
  std::string take_diagnostics() override { return now_used_->take_diagnostics(); }
  std::string peer_address() const override { return now_used_->peer_address(); }
  std::string own_address() const override { return now_used_->own_address(); }
  std::string waiting_for(Time now) const override { return now_used_->waiting_for(now); }

 private:
  std::string both_reasons() const;

  const SshTarget target_;
  // Stays until the owner has seen that fd() is another one.
  std::unique_ptr<SshChannel> first_;
  std::unique_ptr<Channel> second_;
  Channel* now_used_;
  std::string early_;  // sent before it was known over what
  std::string first_reason_, trouble_;
};

// Each once. Where the configuration asks for ssh, that is no trouble of its own; a refused login
// is one, whichever client is refused.
std::string SshRoute::both_reasons() const {
  const std::string known = "cannot reach " + target_.label + ": ";
  const std::string& second = now_used_->reason();
  if (first_reason_.starts_with(known)) {
    const std::string why = first_reason_.substr(known.size());
    return second + " (" + why.substr(0, why.find(", which takes")) + ")";
  }
  if (second.find("Permission denied") != second.npos) {
    return first_reason_ + "; the program ssh is refused, too";
  }
  return first_reason_ + "; " + second.substr(second.starts_with(known) ? known.size() : 0);
}

void SshRoute::advance(Time now) {
  if (second_) first_.reset();
  now_used_->advance(now);
  if (second_ && state() == ChannelState::closed && end() == ChannelEnd::refused) {
    trouble_ = both_reasons();
  }
  if (second_ || state() == ChannelState::opening) return;
  if (state() == ChannelState::closed && first_->openssh_may_do()) {
    auto second = start_openssh_channel(target_);
    if (!second) {
      trouble_ = first_->reason() + ", and " + second.error().text;
      return;
    }
    second_ = std::move(*second);
    first_reason_ = first_->reason();
    now_used_ = second_.get();
    now_used_->send(early_);
  }
  early_.clear();
}

}  // namespace

std::unique_ptr<Channel> start_ssh_route(SshTarget target) {
  if (!target.lookup) target.lookup = std::make_shared<SshLookup>(target.config);
  return std::make_unique<SshRoute>(std::move(target));
}

Result<std::unique_ptr<Channel>> start_openssh_channel(const SshTarget& target) {
  if (find_ssh_program().empty()) return Error{"the program ssh is not installed here"};
  ChannelCommand command;
  command.label = target.label;
  command.argv = openssh_argv(target);
  command.lost_code = kOpensshLost;
  command.may_recover = openssh_may_recover;
  if (target.accept_new_host_keys) command.hint = openssh_hint;
  command.deadline = target.deadline;
  return start_command_channel(std::move(command));
}

}  // namespace hvd
