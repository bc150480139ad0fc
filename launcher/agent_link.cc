#include "launcher/agent_link.h"

#include <algorithm>

namespace hvd {

namespace {
constexpr size_t kDiagnostics = 4096;

std::string last_line_of(const std::string& text) {
  const size_t end = text.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "";
  const size_t start = text.find_last_of('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1,
                     end - (start == std::string::npos ? 0 : start + 1) + 1);
}
}  // namespace

AgentLink::AgentLink(std::string label, const std::string& build, std::unique_ptr<Channel> channel,
                     LauncherHello hello, Time start_deadline, BinarySource binary)
    : label_(std::move(label)),
      build_(build),
      channel_(std::move(channel)),
      hello_(std::move(hello)),
      silence_(static_cast<int64_t>(hello_.silence_ns)),
      start_deadline_(start_deadline),
      bootstrap_(label_, build),
      binary_(std::move(binary)) {
  if (!binary_) channel_->send(to_frame(ToAgent(hello_)));
}

bool AgentLink::may_go_on(const Down& down) const {
  if (hello_.survive_ns == 0 || !met_ || down.end == HostEnd::taken) return false;
  // The end of what carries the conversation need not be the agent's, but where that is our child.
  const bool sure = absent_ || parting_ || (!binary_ && !hello_.attach);
  return down.end != HostEnd::ended || !sure;
}

void AgentLink::go_on(std::unique_ptr<Channel> channel, Time start_deadline) {
  channel_ = std::move(channel);
  start_deadline_ = start_deadline;
  bootstrap_ = Bootstrap(label_, build_);
  reader_ = FrameReader();
  diagnostics_.clear();
  hello_.attach = true;
  hello_.take_over = false;
  hello_.heard = heard_;
  state_ = State::starting;
  if (!binary_) channel_->send(to_frame(ToAgent(hello_)));
}

Time AgentLink::given_up_at() const {
  return last_met_ +
         longest_alone(bounded(hello_.survive_ns), bounded(hello_.failure_grace_ns), silence_);
}

void AgentLink::advance(Time now, std::vector<News>& news) {
  if (state_ == State::down) return;
  channel_->advance(now);
  read(now, news);
  if (state_ == State::down || channel_->state() != ChannelState::closed) return;
  const bool was_up = state_ == State::talking;
  switch (channel_->end()) {
    case ChannelEnd::refused:
      end(HostEnd::refused, channel_->reason(), news);
      break;
    case ChannelEnd::ended:
      end(was_up ? HostEnd::ended : HostEnd::refused, channel_->reason() + diagnosis(), news);
      break;
    case ChannelEnd::lost:
      end(was_up ? HostEnd::lost : HostEnd::refused, channel_->reason(), news);
      break;
  }
}

void AgentLink::read(Time now, std::vector<News>& news) {
  diagnostics_ += channel_->take_diagnostics();
  if (diagnostics_.size() > kDiagnostics) {
    diagnostics_.erase(0, diagnostics_.size() - kDiagnostics);
  }
  const std::string bytes = channel_->take_received();
  if (bytes.empty()) return;
  last_heard_ = now;
  if (state_ == State::talking) last_met_ = now;
  if (state_ == State::starting) {
    greet(bytes, news);
  } else {
    reader_.feed(bytes);
    take_frames(news);
  }
}

void AgentLink::greet(std::string_view bytes, std::vector<News>& news) {
  bootstrap_.feed(bytes);
  if (binary_ && bootstrap_.state() == Bootstrap::State::need_binary) {
    const Result<const AgentBinary*> binary = binary_();
    if (!binary) return end(HostEnd::refused, label_ + ": " + binary.error().text, news);
    channel_->send(bootstrap_.push(**binary));
  }
  if (bootstrap_.state() == Bootstrap::State::failed) {
    return end(HostEnd::refused, bootstrap_.error(), news);
  }
  if (bootstrap_.state() != Bootstrap::State::ready) return;
  state_ = State::greeted;
  if (binary_) channel_->send(to_frame(ToAgent(hello_)));
  reader_.feed(bootstrap_.take_rest());
  take_frames(news);
}

void AgentLink::take_frames(std::vector<News>& news) {
  while (state_ != State::down) {
    const std::optional<std::string_view> body = reader_.next();
    if (!body) break;
    std::optional<FromAgent> message = parse_from_agent(*body);
    if (!message) return end(HostEnd::lost, label_ + " sent a message that is none", news);
    take(std::move(*message), news);
  }
  if (reader_.broken()) end(HostEnd::lost, label_ + " sent a message that is too long", news);
}

void AgentLink::take(FromAgent message, std::vector<News>& news) {
  const auto* hello = std::get_if<AgentHello>(&message);
  auto* held = std::get_if<Held>(&message);
  if ((hello != nullptr) != (state_ == State::greeted) ||
      (held != nullptr) != (state_ == State::met)) {
    return end(HostEnd::lost, label_ + " sent its messages out of order", news);
  }
  if (hello != nullptr) return take_hello(*hello, news);
  if (held != nullptr) return take_held(std::move(*held), news);
  if (is_counted(message)) ++heard_;
  if (const auto* beat = std::get_if<Beat>(&message)) {
    unheard_.heard(beat->heard);
    send(Echo{beat->agent_time, heard_});
  }
  if (const auto* credit = std::get_if<InputCredit>(&message)) {
    if (credit->bytes > input_under_way_) {
      return end(HostEnd::lost, label_ + " asks for more input than it took", news);
    }
    input_under_way_ -= credit->bytes;
  }
  news.push_back(std::move(message));
}

void AgentLink::take_hello(const AgentHello& hello, std::vector<News>& news) {
  if (hello.protocol != kProtocol) {
    return end(HostEnd::refused,
               label_ + ": its agent speaks protocol " + std::to_string(hello.protocol) +
                   ", this program " + std::to_string(kProtocol),
               news);
  }
  if (!hello.refusal.empty()) {
    absent_ = hello.absent;
    return end(hello.absent ? HostEnd::ended : HostEnd::taken, label_ + ": " + hello.refusal, news);
  }
  state_ = hello_.attach ? State::met : State::talking;
  last_met_ = last_heard_;
  const bool known = std::exchange(met_, true);
  if (!known) news.emplace_back(FromAgent(hello));
}

void AgentLink::take_held(Held held, std::vector<News>& news) {
  state_ = State::talking;
  last_met_ = last_heard_;
  unheard_.heard(held.heard);
  channel_->send(unheard_.unheard());
  news.emplace_back(FromAgent(std::move(held)));
}

void AgentLink::judge(Time now, std::vector<News>& news) {
  if (state_ == State::down) return;
  if (channel_->deadline() && *channel_->deadline() <= now) advance(now, news);
  if (state_ == State::down || limit() > now) return;
  if (state_ == State::talking) {
    return end(HostEnd::silent,
               label_ + " has not been heard for " + format_duration(now - last_heard_), news);
  }
  end(HostEnd::refused,
      label_ + ": " +
          (channel_->state() == ChannelState::opening ? "the connection was not ready"
                                                      : "its agent did not start") +
          " within the start deadline" + diagnosis(),
      news);
}

std::string AgentLink::waiting_for(Time now) const {
  if (channel_->state() != ChannelState::opening) return label_ + ": its agent has not started yet";
  const std::string text = channel_->waiting_for(now);
  return text.empty() ? label_ + ": the connection is not ready yet" : text;
}

Time AgentLink::limit() const {
  return state_ == State::talking ? last_heard_ + silence_ : start_deadline_;
}

std::optional<Time> AgentLink::deadline() const {
  if (state_ == State::down) return std::nullopt;
  return earlier(limit(), channel_->deadline());
}

void AgentLink::send(const ToAgent& message) {
  if (state_ == State::down && (hello_.survive_ns == 0 || !met_)) return;
  if (const auto* input = std::get_if<Input>(&message)) input_under_way_ += input->bytes.size();
  if (std::holds_alternative<Goodbye>(message)) parting_ = true;
  std::string bytes = to_frame(message);
  if (hello_.survive_ns == 0 || state_ == State::talking) channel_->send(bytes);
  if (hello_.survive_ns > 0 && is_counted(message)) unheard_.add(std::move(bytes));
}

void AgentLink::end(HostEnd how, const std::string& reason, std::vector<News>& news) {
  state_ = State::down;
  news.push_back(Down{how, reason});
}

std::string AgentLink::diagnosis() const {
  std::string line = last_line_of(diagnostics_);
  if (line.empty() && state_ == State::starting) line = bootstrap_.last_skipped();
  return line.empty() ? "" : ": " + line;
}

}  // namespace hvd
