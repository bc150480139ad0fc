#include "launcher/discovery.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "launcher/hosts.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr Duration kPause = 1s;
constexpr Duration kLimit = 5s;
constexpr size_t kMostText = 1u << 20;
constexpr size_t kMostErrors = 4096;
constexpr int kLastWaitMs = 1000;
constexpr int kReadsPerTurn = 16;
// What its poller names.
constexpr uint64_t kText = 0, kErrors = 1, kEnd = 2;
const std::string kOutput = "output of the discovery script";

// False at the end of the stream. What goes beyond `most` is dropped. Bounded, since a program can
// print as fast as it is read.
bool read_some(const Fd& fd, std::string& text, size_t most) {
  char block[16384];
  ssize_t n = 1;
  for (int i = 0; i < kReadsPerTurn && n > 0; ++i) {
    n = read(fd.get(), block, sizeof block);
    if (n > 0 && text.size() < most) text.append(block, static_cast<size_t>(n));
  }
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \r\n");
  if (end == text.npos) return "";
  const size_t start = text.find_last_of('\n', end);
  const size_t from = start == text.npos ? 0 : start + 1;
  return text.substr(from, end - from + 1);
}

Result<std::vector<Host>> parse_output(const std::string& text) {
  auto file = looks_like_toml(text, kOutput) ? parse_hosts_toml(text, kOutput)
                                             : parse_hosts_text(text, kOutput);
  if (!file) return file.error();
  if (!file->job.empty()) {
    return Error{file->job[0].source + ": a [job] table: expected hosts only"};
  }
  for (const Host& host : file->hosts) {
    if (!host.slots_auto) continue;
    return Error{host.source + ": the slots of " + host.name +
                 " are \"auto\": expected a number, since the host is asked nothing before it is "
                 "used"};
  }
  if (const Status unique = check_no_duplicates(file->hosts); !unique) return unique.error();
  return std::move(file->hosts);
}

}  // namespace

Discovery::Discovery(std::string command, Time first)
    : command_(std::move(command)), next_(first) {}

Discovery::~Discovery() {
  if (!child_) return;
  stop();
  // One that does not die of KILL sits in the kernel, and is its parent's heir to reap.
  pollfd end{child_->pidfd.get(), POLLIN, 0};
  if (poll(&end, 1, kLastWaitMs) == 1) static_cast<void>(reap(*child_));
}

Time Discovery::deadline() const {
  if (!child_) return next_;
  return given_up_ ? Time::max() : limit_;
}

Status Discovery::start(Time now) {
  next_ = now + kPause;
  Result<Pipe> out = make_pipe(), err = make_pipe();
  if (!out || !err) return out ? err.error() : out.error();
  SpawnSpec spec;
  spec.program = "/bin/sh";
  spec.argv = {"sh", "-c", command_};
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    spec.environment.emplace_back(*entry);
  }
  spec.out = out->write.get();
  spec.err = err->write.get();
  spec.new_session = true;
  spec.die_with_parent = true;
  SpawnResult spawned = spawn(spec);
  if (const auto* failure = std::get_if<SpawnFailure>(&spawned)) return Error{failure->text};
  child_ = std::move(std::get<Child>(spawned));
  given_up_ = false;
  limit_ = now + kLimit;
  out_ = std::move(out->read);
  err_ = std::move(err->read);
  text_.clear();
  errors_.clear();
  for (const int fd : {out_.get(), err_.get()}) set_nonblocking(fd);
  poller_.watch(out_.get(), kText, {true, false});
  poller_.watch(err_.get(), kErrors, {true, false});
  poller_.watch(child_->pidfd.get(), kEnd, {true, false});
  return Ok{};
}

void Discovery::read_stream(Fd& fd, std::string& text, size_t most) {
  if (!fd || read_some(fd, text, most)) return;
  poller_.forget(fd.get());
  fd.reset();
}

// Whatever it started is as dead as it is.
void Discovery::stop() {
  kill(-child_->pid, SIGKILL);
}

std::optional<Result<std::vector<Host>>> Discovery::advance(Time now) {
  if (!child_) {
    if (now < next_) return std::nullopt;
    const Status started = start(now);
    if (started) return std::nullopt;
    return Error{"the discovery script cannot be started: " + started.error().text};
  }
  bool over = false;
  for (const Ready& ready : poller_.wait(Time{})) over = over || ready.id == kEnd;
  read_stream(out_, text_, kMostText + 1);
  read_stream(err_, errors_, kMostErrors);
  if (over) return finish(now);
  if (given_up_) return std::nullopt;
  if (text_.size() > kMostText) return give_up("printed more than 1 MiB");
  if (now >= limit_) return give_up("did not end within " + format_duration(kLimit));
  return std::nullopt;
}

Result<std::vector<Host>> Discovery::give_up(const std::string& why) {
  given_up_ = true;
  stop();
  return Error{"the discovery script " + why + " and was killed"};
}

std::optional<Result<std::vector<Host>>> Discovery::finish(Time now) {
  stop();
  poller_.forget(child_->pidfd.get());
  const Ending ending = reap(*child_);
  for (Fd* fd : {&out_, &err_}) {
    if (*fd) poller_.forget(fd->get());
    fd->reset();
  }
  child_.reset();
  next_ = now + kPause;
  if (given_up_) return std::nullopt;
  if (ending.signal == 0 && ending.exit_code == 0) return parse_output(text_);
  const std::string how = ending.signal != 0
                              ? "was killed by " + signal_name(ending.signal)
                              : "ended with exit code " + std::to_string(ending.exit_code);
  const std::string said = last_line(errors_);
  return Error{"the discovery script " + how + (said.empty() ? "" : ": " + said)};
}

Result<std::vector<Host>> discover_hosts(const std::string& command) {
  Discovery discovery(command, Time{});
  while (true) {
    if (auto found = discovery.advance(now())) return std::move(*found);
    pollfd news{discovery.fd(), POLLIN, 0};
    poll(&news, 1, poll_timeout(discovery.deadline(), now()));
  }
}

}  // namespace hvd
