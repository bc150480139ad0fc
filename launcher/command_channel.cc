#include "launcher/command_channel.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/buffer.h"
#include "base/process.h"
#include "launcher/pause.h"
#include "launcher/terminal_text.h"

extern char** environ;

namespace hvd {

using namespace std::chrono_literals;

namespace {

// After the program's end its output is read on for as long as a stray child holds it open.
constexpr Duration kLinger = 1s;
// A killed program that is not gone within this is in the kernel's hands.
constexpr int kReapMs = 1000;
constexpr size_t kReadBlock = 256 << 10;
// Of what the program says on stderr, this much is kept for a sentence.
constexpr size_t kMostSaid = 2048;

std::string ending_text(const Ending& ending) {
  return ending.signal != 0 ? "by " + signal_name(ending.signal)
                            : "with exit code " + std::to_string(ending.exit_code);
}

class CommandChannel final : public Channel {
 public:
  explicit CommandChannel(ChannelCommand command, std::string program)
      : command_(std::move(command)), program_(std::move(program)) {}
  ~CommandChannel() override { stop(); }
  // Starts the program, the first time or anew.
  Status start();

  CommandChannel(const CommandChannel&) = delete;
  CommandChannel& operator=(const CommandChannel&) = delete;

  ChannelState state() const override { return state_; }
  ChannelEnd end() const override { return end_; }
  const std::string& reason() const override { return reason_; }
  int fd() const override { return state_ == ChannelState::closed ? -1 : poller_.fd(); }
  Interest interest() const override { return {true, false}; }
  std::optional<Time> deadline() const override {
    if (state_ == ChannelState::closed) return std::nullopt;
    return earlier(linger_end_, next_try_);
  }
  std::string waiting_for(Time) const override {
    return "cannot reach " + command_.label + " yet: " + command_.argv[0] +
           (said_.empty() ? " has not got through" : said());
  }

  void advance(Time now) override;
  void send(std::string_view bytes) override;
  size_t unsent() const override { return unsent_.size(); }
  std::string take_received() override { return std::exchange(received_, {}); }
  std::string take_diagnostics() override { return std::exchange(diagnostics_, {}); }
  std::string peer_address() const override { return {}; }
  std::string own_address() const override { return {}; }

 private:
  void flush();
  void read_out(Time now);
  void read_err();
  void look_at_child(Time now);
  void close(Time now);
  Ending stop();
  std::string said() const;

  const ChannelCommand command_;
  const Time started_ = now();
  const std::string program_;  // its path
  Child child_;                // without a pidfd once it is reaped
  Fd in_, out_, err_;
  Poller poller_;
  bool ended_ = false;
  std::optional<Time> linger_end_, next_try_;
  int tries_ = 0;
  Buffer unsent_;
  std::string received_, diagnostics_, said_, reason_;
  ChannelState state_ = ChannelState::opening;
  ChannelEnd end_ = ChannelEnd::refused;
};

Status CommandChannel::start() {
  auto in = make_pipe(), out = make_pipe(), err = make_pipe();
  for (const auto* pipe : {&in, &out, &err}) {
    if (!*pipe) return pipe->error();
  }
  SpawnSpec spec;
  spec.program = program_;
  spec.argv = command_.argv;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable(*entry);
    const bool passes =
        command_.passes == nullptr || command_.passes(variable.substr(0, variable.find('=')));
    if (passes) spec.environment.emplace_back(variable);
  }
  spec.in = in->read.get();
  spec.out = out->write.get();
  spec.err = err->write.get();
  spec.new_session = true;
  spec.die_with_parent = true;
  spec.file_limit = command_.file_limit;
  SpawnResult child = spawn(spec);
  if (const auto* failure = std::get_if<SpawnFailure>(&child)) return Error{failure->text};
  child_ = std::move(std::get<Child>(child));
  in_ = std::move(in->write);
  out_ = std::move(out->read);
  err_ = std::move(err->read);
  for (const int fd : {in_.get(), out_.get(), err_.get()}) set_nonblocking(fd);
  for (const int fd : {out_.get(), err_.get(), child_.pidfd.get()}) {
    poller_.watch(fd, 0, {true, false});
  }
  ended_ = false;
  ++tries_;
  flush();
  return Ok{};
}

void CommandChannel::advance(Time now) {
  if (state_ == ChannelState::closed) return;
  if (next_try_) {
    if (now < *next_try_) return;
    next_try_.reset();
    said_.clear();
    if (const Status started = start(); !started) {
      reason_ = "cannot reach " + command_.label + ": " + started.error().text;
      state_ = ChannelState::closed;
      return;
    }
  }
  flush();
  read_err();
  read_out(now);
  look_at_child(now);
  if ((ended_ && !out_) || (linger_end_ && now >= *linger_end_)) close(now);
}

void CommandChannel::send(std::string_view bytes) {
  if (state_ == ChannelState::closed || (!in_ && !next_try_)) return;
  unsent_.append(bytes);
  flush();
}

void CommandChannel::flush() {
  if (next_try_) return;
  while (in_ && !unsent_.empty()) {
    const ssize_t n = write(in_.get(), unsent_.view().data(), unsent_.size());
    if (n >= 0) {
      unsent_.drop(static_cast<size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) break;
    // Nobody reads any more: the program's end, or its closed output, says why.
    poller_.forget(in_.get());
    in_.reset();
  }
  if (!in_) return unsent_.clear();
  poller_.watch(in_.get(), 0, {false, !unsent_.empty()});
}

// At most one block a turn, so that one flooding host does not hold up the others.
void CommandChannel::read_out(Time now) {
  if (!out_) return;
  const size_t before = received_.size();
  received_.resize(before + kReadBlock);
  const ssize_t n = read(out_.get(), received_.data() + before, kReadBlock);
  const int error = errno;
  received_.resize(before + (n > 0 ? static_cast<size_t>(n) : 0));
  if (n > 0) state_ = ChannelState::open;
  if (n > 0 || (n < 0 && (error == EAGAIN || error == EINTR))) return;
  poller_.forget(out_.get());
  out_.reset();
  if (!linger_end_) linger_end_ = now + kLinger;
}

void CommandChannel::read_err() {
  char block[4096];
  const ssize_t n = err_ ? read(err_.get(), block, sizeof block) : 0;
  if (n > 0) {
    const std::string_view text(block, static_cast<size_t>(n));
    diagnostics_ += text;
    std::copy_if(text.begin(), text.end(), std::back_inserter(said_),
                 [](char c) { return c != '\r'; });
    if (said_.size() > kMostSaid) said_.erase(0, said_.size() - kMostSaid);
  } else if (err_ && (n == 0 || (errno != EAGAIN && errno != EINTR))) {
    poller_.forget(err_.get());
    err_.reset();
  }
}

void CommandChannel::look_at_child(Time now) {
  pollfd end{child_.pidfd.get(), POLLIN, 0};
  if (ended_ || poll(&end, 1, 0) != 1) return;
  ended_ = true;
  poller_.forget(child_.pidfd.get());
  linger_end_ = now + kLinger;
}

void CommandChannel::close(Time now) {
  for (size_t before = 1; before != diagnostics_.size() && before < kMostSaid;) {
    before = diagnostics_.size();
    read_err();
  }
  const bool was_open = state_ == ChannelState::open;
  const bool by_itself = ended_;
  const Ending ending = stop();
  linger_end_.reset();
  const int code = by_itself && ending.signal == 0 ? ending.exit_code : -1;
  const Time next = now + pause_before_try(tries_);
  const bool late = now >= end_of_patience(started_, command_.deadline);
  if (!was_open && command_.may_recover != nullptr && command_.may_recover(code, said_, late) &&
      next < command_.deadline) {
    next_try_ = next;
    return;
  }
  const std::string how =
      command_.argv[0] +
      (by_itself ? " ended " + ending_text(ending) : " closed the connection and went on running");
  state_ = ChannelState::closed;
  if (was_open) {
    const bool lost = code == command_.lost_code;
    end_ = lost ? ChannelEnd::lost : ChannelEnd::ended;
    reason_ = "the connection to " + command_.label + ": " + how + (lost ? said() : "");
  } else {
    reason_ = "cannot reach " + command_.label + ": " + how + said() +
              (tries_ > 1 ? " (tried " + std::to_string(tries_) + " times)" : "") +
              (command_.hint == nullptr ? "" : command_.hint(said_));
  }
}

// What the program said on its way out, in one line; what it said twice once.
std::string CommandChannel::said() const {
  std::string text;
  std::set<std::string> lines;
  for (size_t start = 0; start < said_.size();) {
    const size_t end = std::min(said_.find('\n', start), said_.size());
    const std::string line = terminal_lines("", said_.substr(start, end - start));
    const size_t last = line.find_last_not_of(" \r\n");
    if (last != line.npos && lines.insert(line).second)
      text += (text.empty() ? ": " : "; ") + line.substr(0, last + 1);
    start = end + 1;
  }
  return text;
}

Ending CommandChannel::stop() {
  for (Fd* fd : {&in_, &out_, &err_}) {
    if (*fd) poller_.forget(fd->get());
    fd->reset();
  }
  if (!child_.pidfd) return {};
  // Its whole session, since a wrapper's children hold the connection too; and before it is reaped,
  // while the number is its own.
  kill(-child_.pid, SIGKILL);
  poller_.forget(child_.pidfd.get());
  pollfd end{child_.pidfd.get(), POLLIN, 0};
  const Ending ending = poll(&end, 1, kReapMs) > 0 ? reap(child_) : Ending{};
  child_.pidfd.reset();
  return ending;
}

}  // namespace

Result<std::unique_ptr<Channel>> start_command_channel(ChannelCommand command) {
  const std::string failed = "cannot reach " + command.label + ": ";
  const char* path = std::getenv("PATH");
  const auto program = find_program(command.argv[0], path == nullptr ? "" : path, "");
  if (const auto* failure = std::get_if<SpawnFailure>(&program)) {
    return Error{failed + failure->text};
  }
  auto channel =
      std::make_unique<CommandChannel>(std::move(command), std::get<std::string>(program));
  if (const Status started = channel->start(); !started) {
    return Error{failed + started.error().text};
  }
  return std::unique_ptr<Channel>(std::move(channel));
}

}  // namespace hvd
