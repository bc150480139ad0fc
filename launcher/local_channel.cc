#include "launcher/local_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/buffer.h"
#include "base/process.h"

extern char** environ;

namespace hvd {

namespace {

// The agent's last descriptor closes as it exits: it can be reaped at once or within this.
constexpr int kReapMs = 1000;
constexpr size_t kReadBlock = 256 << 10;

class LocalChannel : public Channel {
 public:
  LocalChannel(std::string label, Fd socket, Child child)
      : label_(std::move(label)), socket_(std::move(socket)), child_(std::move(child)) {
    set_nonblocking(socket_.get());
  }

  ChannelState state() const override {
    return socket_ ? ChannelState::open : ChannelState::closed;
  }
  ChannelEnd end() const override { return ChannelEnd::ended; }
  const std::string& reason() const override { return reason_; }
  int fd() const override { return socket_.get(); }
  Interest interest() const override { return {true, !unsent_.empty()}; }
  std::optional<Time> deadline() const override { return std::nullopt; }

  void advance(Time) override {
    if (!socket_) return;
    flush();
    read_all();
  }

  void send(std::string_view bytes) override {
    if (!socket_) return;
    unsent_.append(bytes);
    flush();
  }
  size_t unsent() const override { return unsent_.size(); }
  std::string take_received() override { return std::exchange(received_, {}); }
  std::string take_diagnostics() override { return {}; }
  std::string peer_address() const override { return {}; }
  std::string own_address() const override { return {}; }

 private:
  void flush() {
    while (!unsent_.empty()) {
      const ssize_t n = ::send(socket_.get(), unsent_.view().data(), unsent_.size(), MSG_NOSIGNAL);
      if (n < 0) break;  // full, or broken: then the read says so
      unsent_.drop(static_cast<size_t>(n));
    }
  }

  // At most one block a turn, so that one flooding host does not hold up the others.
  void read_all() {
    if (!block_) block_ = std::make_unique_for_overwrite<char[]>(kReadBlock);
    const ssize_t n = read(socket_.get(), block_.get(), kReadBlock);
    if (n > 0) received_.append(block_.get(), static_cast<size_t>(n));
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    socket_.reset();
    pollfd end{child_.pidfd.get(), POLLIN, 0};
    if (poll(&end, 1, kReapMs) <= 0) {
      reason_ = label_ + ": its agent closed the connection and goes on running";
      return;
    }
    const Ending ending = reap(child_);
    reason_ = label_ + ": its agent ended " +
              (ending.signal != 0 ? "by " + signal_name(ending.signal)
                                  : "with exit code " + std::to_string(ending.exit_code));
  }

  std::string label_;
  Fd socket_;
  Child child_;
  Buffer unsent_;
  std::unique_ptr<char[]> block_;
  std::string received_, reason_;
};

}  // namespace

Result<std::unique_ptr<Channel>> start_local_channel(const std::string& label,
                                                     const std::string& program,
                                                     const std::vector<std::string>& arguments,
                                                     uint64_t file_limit) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return errno_error("cannot make a socket for the agent", errno);
  }
  Fd ours(ends[0]);
  const Fd theirs(ends[1]);
  SpawnSpec spec;
  spec.program = program;
  spec.argv = arguments;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    spec.environment.emplace_back(*variable);
  }
  spec.in = theirs.get();
  spec.out = theirs.get();
  spec.err = STDERR_FILENO;
  spec.new_session = true;
  spec.file_limit = file_limit;
  SpawnResult child = spawn(spec);
  if (const auto* failure = std::get_if<SpawnFailure>(&child)) {
    return Error{label + ": cannot start its agent: " + failure->text};
  }
  return std::unique_ptr<Channel>(
      std::make_unique<LocalChannel>(label, std::move(ours), std::move(std::get<Child>(child))));
}

}  // namespace hvd
