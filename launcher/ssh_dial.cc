#include "launcher/ssh_dial.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "launcher/resolve.h"
#include "launcher/ssh_login.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

// A server flooded with logins drops connections at random (MaxStartups); so many tries it gets.
constexpr int kMostTries = 8;
// A port without a listener stays so, unless its sshd is just being restarted.
constexpr int kMostRefusals = 3;
constexpr Duration kFirstPause = 100ms;
constexpr Duration kLongestPause = 3s;

// A server may send lines before its banner: at most this much, for at most this long.
constexpr size_t kMostPreamble = 4096;
constexpr Duration kPreambleLimit = 5s;

// A stranger's first line, fit for a sentence.
std::string quoted(std::string_view text) {
  std::string line = "\"";
  for (const char c : text.substr(0, 80)) {
    if (c == '\n' || c == '\r') break;
    line += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return line + "\"";
}

Duration pause_before(int attempt) {
  std::minstd_rand random(std::random_device{}());
  const Duration base = std::min<Duration>(kFirstPause * (1 << attempt), kLongestPause);
  return base / 2 + base * std::uniform_int_distribution<int>(0, 100)(random) / 100;
}

// The thread's work: one attempt after the other until the command runs.
class Dialler {
 public:
  Dialler(Dial& dial, const SshTarget& target)
      : dial_(dial), target_(target), deadline_(target.deadline) {}

  Result<std::unique_ptr<SshLink>> run();

 private:
  Attempted attempt();
  Attempted prepare();
  Attempted connect();
  Attempted await_banner();
  Attempted exchange_keys();
  Attempted start_command();

  Trouble unreachable(const std::string& why, bool transient = false) const {
    return {"cannot reach " + target_.label + ": " + why, transient};
  }
  Trouble closed_early(const std::string& when) const {
    return unreachable(endpoint_.where + " closed the connection " + when, true);
  }
  // Waits for the socket; false when given up.
  bool wait_for(short events);
  bool wait_link() { return wait_for(POLLIN | (link_->interest().write ? POLLOUT : 0)); }
  bool pause(Duration duration);

  Dial& dial_;
  const SshTarget& target_;
  const Time deadline_;
  const LinkWait wait_ = [this] { return wait_link(); };
  std::unique_ptr<SshLink> link_;
  Endpoint endpoint_;
  int refusals_ = 0;
};

bool Dialler::wait_for(short events) {
  while (true) {
    pollfd fds[2] = {{link_->socket(), events, 0}, {dial_.cancelled_fd(), POLLIN, 0}};
    const int n = poll(fds, 2, poll_timeout(deadline_, now()));
    if (n < 0 && errno == EINTR) continue;
    return n > 0 && fds[1].revents == 0;
  }
}

bool Dialler::pause(Duration duration) {
  const Time until = std::min(now() + duration, deadline_);
  pollfd entry{dial_.cancelled_fd(), POLLIN, 0};
  while (poll(&entry, 1, poll_timeout(until, now())) < 0 && errno == EINTR) {
  }
  return entry.revents == 0 && now() < deadline_;
}

Attempted Dialler::prepare() {
  dial_.enter(DialPhase::preparing, "");
  link_ = std::make_unique<SshLink>();
  ssh_session session = link_->session();
  if (ssh_options_set(session, SSH_OPTIONS_HOST, target_.address.c_str()) != SSH_OK) {
    return unreachable("\"" + target_.address + "\" is no host name or address");
  }
  const char* config = target_.config.empty() ? nullptr : target_.config.c_str();
  if (ssh_options_parse_config(session, config) != SSH_OK) {
    return unreachable("the ssh configuration cannot be used: " + link_->error());
  }
  if (!target_.user.empty()) ssh_options_set(session, SSH_OPTIONS_USER, target_.user.c_str());
  if (target_.port != 0) ssh_options_set(session, SSH_OPTIONS_PORT, &target_.port);
  // Whatever the configuration says: unknown keys pass by our own option only.
  const int strict = 1;
  ssh_options_set(session, SSH_OPTIONS_STRICTHOSTKEYCHECK, &strict);
  if (!target_.known_hosts.empty()) {
    ssh_options_set(session, SSH_OPTIONS_KNOWNHOSTS, target_.known_hosts.c_str());
    ssh_options_set(session, SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null");
  }
  endpoint_.name = link_->text_option(SSH_OPTIONS_HOST);
  ssh_options_get_port(session, &endpoint_.port);
  const std::string proxy = link_->text_option(SSH_OPTIONS_PROXYCOMMAND);
  if (!proxy.empty()) {
    return unreachable("the ssh configuration leads there through " + quoted(proxy) +
                       ", and ProxyJump and ProxyCommand are not supported");
  }
  return std::nullopt;
}

Attempted Dialler::connect() {
  dial_.enter(DialPhase::resolving, endpoint_.name);
  const auto found = resolve(endpoint_.name, static_cast<uint16_t>(endpoint_.port));
  if (const auto* failure = std::get_if<LookupFailure>(&found)) {
    return unreachable("the name " + endpoint_.name + " cannot be resolved: " + failure->text,
                       failure->transient);
  }
  const auto& addresses = std::get<std::vector<Address>>(found);
  std::string all;
  for (const Address& address : addresses) {
    all += (all.empty() ? "" : " and ") + endpoint_text(address);
  }
  dial_.enter(DialPhase::connecting, all);
  auto connected = connect_first(addresses, deadline_, dial_.cancelled_fd());
  if (const auto* failure = std::get_if<ConnectFailure>(&connected)) {
    if (failure->given_up) return Trouble{};
    return unreachable(failure->text, failure->refused && ++refusals_ < kMostRefusals);
  }
  Fd socket = std::move(std::get<Fd>(connected));
  endpoint_.where = peer_host(socket.get()) + " port " + std::to_string(endpoint_.port);
  link_->attach(std::move(socket));
  return std::nullopt;
}

// Looks at what the server says without taking it, so that a stranger can be quoted.
Attempted Dialler::await_banner() {
  dial_.enter(DialPhase::awaiting_banner, endpoint_.where);
  // Sends our own banner; the server's is read by later calls only.
  if (link_->connect() == SSH_ERROR) return closed_early("at once: " + link_->error());
  std::optional<Time> preamble_end;
  while (true) {
    if (!wait_for(POLLIN)) return Trouble{};
    char text[kMostPreamble];
    const ssize_t n = recv(link_->socket(), text, sizeof text, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n < 0) return closed_early(std::string("before its SSH banner: ") + std::strerror(errno));
    if (n == 0) return closed_early("before its SSH banner");
    const std::string_view said(text, static_cast<size_t>(n));
    if (said.starts_with("SSH-") || said.find("\nSSH-") != said.npos) return std::nullopt;
    if (!preamble_end) preamble_end = now() + kPreambleLimit;
    pollfd entry{link_->socket(), POLLRDHUP, 0};
    const bool finished = poll(&entry, 1, 0) == 1;
    if (finished || said.size() == sizeof text || now() >= *preamble_end) {
      // This is how sshd answers when it has too many logins at once.
      const bool flooded = said.starts_with("Exceeded MaxStartups");
      return unreachable(
          "what answers at " + endpoint_.where + " is no SSH server: it says " + quoted(said),
          flooded);
    }
    if (!pause(10ms)) return Trouble{};
  }
}

Attempted Dialler::exchange_keys() {
  dial_.enter(DialPhase::exchanging_keys, endpoint_.where);
  const auto rc = repeat(SSH_AGAIN, *link_, wait_, [&] { return link_->connect(); });
  if (!rc) return Trouble{};
  if (*rc == SSH_OK) return std::nullopt;
  const std::string error = link_->error();
  if (error.starts_with("Socket error")) return closed_early("during the key exchange");
  return unreachable("the key exchange with " + endpoint_.where + " failed: " + error);
}

Attempted Dialler::start_command() {
  dial_.enter(DialPhase::starting, endpoint_.where);
  const auto rc =
      repeat(SSH_AGAIN, *link_, wait_, [&] { return link_->start_command(target_.command); });
  if (!rc) return Trouble{};
  if (*rc == SSH_OK) return std::nullopt;
  return Trouble{"logged in on " + target_.label + " (" + endpoint_.where +
                 "), but nothing can be run there: " + link_->error()};
}

Attempted Dialler::attempt() {
  if (Attempted trouble = prepare()) return trouble;
  if (Attempted trouble = connect()) return trouble;
  if (Attempted trouble = await_banner()) return trouble;
  if (Attempted trouble = exchange_keys()) return trouble;
  if (Attempted trouble = check_host_key(*link_, target_, endpoint_)) return trouble;
  dial_.enter(DialPhase::logging_in, endpoint_.where);
  if (Attempted trouble = log_in(*link_, target_, endpoint_, wait_)) return trouble;
  return start_command();
}

Result<std::unique_ptr<SshLink>> Dialler::run() {
  for (int tries = 1;; ++tries) {
    const Attempted trouble = attempt();
    if (!trouble) return std::move(link_);
    if (!trouble->transient || tries == kMostTries) {
      return Error{tries == 1 || trouble->text.empty()
                       ? trouble->text
                       : trouble->text + " (tried " + std::to_string(tries) + " times)"};
    }
    dial_.note_trouble(trouble->text);
    dial_.enter(DialPhase::pausing, endpoint_.where);
    if (!pause(pause_before(tries - 1))) return Error{};
  }
}

}  // namespace

std::shared_ptr<Dial> Dial::start(SshTarget target) {
  start_libssh();
  auto done = make_pipe();
  auto cancelled = make_pipe();
  HVD_CHECK(done.ok() && cancelled.ok());
  const std::shared_ptr<Dial> dial(new Dial(std::move(*done), std::move(*cancelled)));
  // Signals are the loop's business.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([dial, target = std::move(target)] {
    dial->finish(Dialler(*dial, target).run());
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return dial;
}

std::optional<Result<std::unique_ptr<SshLink>>> Dial::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(result_, std::nullopt);
}

void Dial::cancel() {
  cancelled_.write.reset();
}

Dial::Progress Dial::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

void Dial::enter(DialPhase phase, const std::string& at) {
  const std::lock_guard lock(mutex_);
  progress_.phase = phase;
  progress_.since = now();
  progress_.at = at;
}

void Dial::note_trouble(const std::string& trouble) {
  const std::lock_guard lock(mutex_);
  progress_.trouble = trouble;
}

void Dial::finish(Result<std::unique_ptr<SshLink>> result) {
  const std::lock_guard lock(mutex_);
  result_ = std::move(result);
  done_.write.reset();
}

}  // namespace hvd
