#include "launcher/ssh_channel.h"

#include <algorithm>

#include "launcher/resolve.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr Duration kPhaseLimit = 30s;

// After the command's end the channel stays open for what is still on its way: output in pipes, or
// for as long as a stray child of the command holds its stdout.
constexpr Duration kLinger = 1s;

// A step of a new try that the deadline cut after less says nothing of the host.
constexpr Duration kTelling = 1s;

}  // namespace

SshChannel::SshChannel(SshTarget target)
    : label_(target.label),
      started_(now()),
      start_deadline_(target.deadline),
      dial_(Dial::start(std::move(target))) {}

SshChannel::~SshChannel() {
  if (dial_) dial_->cancel();
}

int SshChannel::fd() const {
  switch (state_) {
    case ChannelState::opening:
      return dial_->done_fd();
    case ChannelState::open:
      return link_->socket();
    case ChannelState::closed:
      break;
  }
  return -1;
}

Interest SshChannel::interest() const {
  switch (state_) {
    case ChannelState::opening:
      return {true, false};
    case ChannelState::open:
      return link_->interest();
    case ChannelState::closed:
      break;
  }
  return {};
}

std::optional<Time> SshChannel::deadline() const {
  switch (state_) {
    case ChannelState::opening:
      return std::min(start_deadline_, dial_->progress().since + kPhaseLimit);
    case ChannelState::open:
      return linger_end_;
    case ChannelState::closed:
      break;
  }
  return std::nullopt;
}

void SshChannel::advance(Time now) {
  if (state_ == ChannelState::opening) return advance_dial(now);
  dial_.reset();
  if (state_ == ChannelState::open) advance_link(now);
}

void SshChannel::advance_dial(Time now) {
  auto result = dial_->take();
  if (!result) {
    if (now < *deadline()) return;
    dial_->cancel();
    return close(ChannelEnd::refused, out_of_time(dial_->progress(), now));
  }
  if (const auto* failure = std::get_if<DialFailure>(&*result)) {
    openssh_may_do_ = failure->openssh;
    const std::string& text = failure->text;
    return close(ChannelEnd::refused, text.empty() ? out_of_time(dial_->progress(), now) : text);
  }
  link_ = std::move(std::get<std::unique_ptr<SshLink>>(*result));
  peer_address_ = peer_host(link_->socket());
  own_address_ = own_host(link_->socket());
  state_ = ChannelState::open;
  advance_link(now);
}

void SshChannel::advance_link(Time now) {
  news_ = false;
  link_->pump(queue_);
  const auto& ending = link_->ending();
  if (ending && !linger_end_) linger_end_ = now + kLinger;
  const bool over = linger_end_ && now >= *linger_end_;
  if (link_->life() == SshLink::Life::living && !over) return;
  if (ending) {
    return close(ChannelEnd::ended, "the remote process on " + label_ + " ended with " + *ending);
  }
  if (link_->life() == SshLink::Life::closed) {
    return close(ChannelEnd::ended, "the remote process on " + label_ + " ended, " +
                                        "and the SSH server did not say how");
  }
  close(ChannelEnd::lost,
        "the SSH connection to " + label_ + " (" + peer_address_ + ") broke: " + link_->error());
}

void SshChannel::close(ChannelEnd end, std::string reason) {
  state_ = ChannelState::closed;
  end_ = end;
  reason_ = std::move(reason);
  queue_.clear();
}

std::string SshChannel::out_of_time(const Dial::Progress& progress, Time now) const {
  const std::string start = "cannot reach " + label_ + ": ";
  const std::string within = " within " + format_duration(now - progress.since);
  // Before a connection is there, or soon after, why the last try failed says more than that this
  // one goes on.
  const bool early = progress.phase <= DialPhase::connecting || now - progress.since < kTelling;
  const bool again = !progress.trouble.empty() && early;
  switch (again ? DialPhase::pausing : progress.phase) {
    case DialPhase::preparing:
      return start + "the ssh configuration was not read" + within;
    case DialPhase::resolving:
      return start + "the name " + progress.at + " was not resolved" + within;
    case DialPhase::connecting:
      return start + "no answer from " + progress.at + within;
    case DialPhase::awaiting_banner:
      return start + progress.at + " accepts connections but sent no SSH banner" + within;
    case DialPhase::exchanging_keys:
      return start + "the key exchange with " + progress.at + " did not end" + within;
    case DialPhase::logging_in:
      return start + progress.at + " or the ssh-agent did not complete the login" + within;
    case DialPhase::starting:
      return start + progress.at + " accepted the login but started nothing" + within;
    case DialPhase::pausing:
      break;
  }
  return progress.trouble + " (tried again for " + format_duration(now - started_) + ")";
}

std::string SshChannel::waiting_for(Time now) const {
  if (state_ != ChannelState::opening) return {};
  const Dial::Progress progress = dial_->progress();
  return progress.trouble.empty() ? out_of_time(progress, now) : progress.trouble;
}

void SshChannel::send(std::string_view bytes) {
  if (state_ == ChannelState::closed) return;
  queue_.add(bytes);
  if (state_ != ChannelState::open) return;
  link_->hand_out(queue_);
  news_ = !link_->received.empty() || !link_->diagnostics.empty() || link_->ending() ||
          link_->life() != SshLink::Life::living;
}

size_t SshChannel::unsent() const {
  return queue_.rest().size() + (link_ ? link_->unflushed() : 0);
}

std::string SshChannel::take_received() {
  return link_ ? std::exchange(link_->received, {}) : std::string();
}

std::string SshChannel::take_diagnostics() {
  return link_ ? std::exchange(link_->diagnostics, {}) : std::string();
}

}  // namespace hvd
