#include "launcher/ssh_dial.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "launcher/pause.h"
#include "launcher/resolve.h"
#include "launcher/ssh_login.h"
#include "launcher/ssh_lookup.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

// Enough for a resolver's plug-ins; of a thousand threads the usual 8 MiB would be too much to ask
// of a machine that lends no memory it does not have.
constexpr size_t kStack = 512u << 10;

// Connections that broke during the login, before the host is given up.
constexpr int kMostLostLogins = 3;

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

// The thread's work: one attempt after the other until the command runs.
class Dialler {
 public:
  Dialler(Dial& dial, const SshTarget& target)
      : dial_(dial), target_(target), deadline_(target.deadline) {}

  DialResult run();

 private:
  Attempted attempt();
  Attempted prepare();
  Attempted set_options();
  Attempted set_known_hosts();
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
  const Time started_ = now();
  const LinkWait wait_ = [this] { return wait_link(); };
  std::unique_ptr<SshLink> link_;
  std::optional<SshPlan> plan_;
  Endpoint endpoint_;
  int lost_logins_ = 0;
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
  if (!plan_) {
    Result<SshPlan> plan = target_.lookup->plan(target_, deadline_, dial_.cancelled_fd());
    if (!plan) return Trouble{plan.error().text};
    plan_ = std::move(*plan);
    if (!plan_->beyond.empty()) {
      Trouble trouble = unreachable("its ssh configuration has \"" + plan_->beyond +
                                    "\", which takes the program ssh");
      trouble.openssh = true;
      return trouble;
    }
  }
  link_ = std::make_unique<SshLink>();
  return set_options();
}

// libssh is told everything and reads no configuration of its own: it knows less of the language
// than OpenSSH, and guesses at what it does not know.
Attempted Dialler::set_options() {
  const SshPlan& plan = *plan_;
  const bool alias = !plan.known_as.empty();
  endpoint_.name = alias ? plan.known_as : plan.host_name;
  endpoint_.port = static_cast<unsigned>(plan.port);
  endpoint_.by_name_alone = false;
  // libssh uses both for known_hosts alone, since the socket is ours.
  const unsigned known_port = alias ? 22 : endpoint_.port;
  const int no = 0, strict = 1;
  bool good = link_->set(SSH_OPTIONS_PROCESS_CONFIG, &no) &&
              link_->set(SSH_OPTIONS_HOST, endpoint_.name.c_str()) &&
              link_->set(SSH_OPTIONS_PORT, &known_port) &&
              link_->set(SSH_OPTIONS_USER, plan.user.c_str()) &&
              link_->set(SSH_OPTIONS_STRICTHOSTKEYCHECK, &strict);
  if (!good) return unreachable("\"" + endpoint_.name + "\" is no host name or address");
  const std::pair<ssh_options_e, const std::string*> lists[] = {
      {SSH_OPTIONS_HOSTKEYS, &plan.host_key_algorithms},
      {SSH_OPTIONS_CIPHERS_C_S, &plan.ciphers},
      {SSH_OPTIONS_CIPHERS_S_C, &plan.ciphers},
      {SSH_OPTIONS_HMAC_C_S, &plan.macs},
      {SSH_OPTIONS_HMAC_S_C, &plan.macs},
      {SSH_OPTIONS_KEY_EXCHANGE, &plan.key_exchanges},
      {SSH_OPTIONS_PUBLICKEY_ACCEPTED_TYPES, &plan.public_key_algorithms},
  };
  for (const auto& [option, list] : lists) {
    if (list->empty() || link_->set(option, list->c_str())) continue;
    Trouble trouble =
        unreachable("of the algorithms " + *list + " in its ssh configuration none is known here");
    trouble.openssh = true;
    return trouble;
  }
  if (!plan.identity_agent.empty()) {
    link_->set(SSH_OPTIONS_IDENTITY_AGENT, plan.identity_agent.c_str());
  }
  return set_known_hosts();
}

// libssh takes two files. The first takes new keys, whether it is there yet or not.
Attempted Dialler::set_known_hosts() {
  std::vector<std::string> files;
  for (const std::string& file : plan_->known_hosts) {
    if (files.empty() || access(file.c_str(), R_OK) == 0) files.push_back(file);
  }
  files.resize(std::max<size_t>(files.size(), 2), "/dev/null");
  if (files.size() > 2) {
    Trouble trouble = unreachable("its host keys are in " + std::to_string(files.size()) +
                                  " files, which takes the program ssh");
    trouble.openssh = true;
    return trouble;
  }
  link_->set(SSH_OPTIONS_KNOWNHOSTS, files[0].c_str());
  link_->set(SSH_OPTIONS_GLOBAL_KNOWNHOSTS, files[1].c_str());
  // As OpenSSH, take the key of the name alone for one of its other ports.
  if (endpoint_.port == 22 || !plan_->known_as.empty()) return std::nullopt;
  if (ssh_session_has_known_hosts_entry(link_->session()) == SSH_KNOWN_HOSTS_OK)
    return std::nullopt;
  const unsigned usual_port = 22;
  link_->set(SSH_OPTIONS_PORT, &usual_port);
  endpoint_.by_name_alone = true;
  return std::nullopt;
}

Attempted Dialler::connect() {
  const std::string& name = plan_->host_name;
  dial_.enter(DialPhase::resolving, name);
  const auto found = resolve(name, static_cast<uint16_t>(plan_->port), plan_->family);
  if (const auto* failure = std::get_if<LookupFailure>(&found)) {
    return unreachable("the name " + name + " cannot be resolved: " + failure->text,
                       !failure->no_such_name || now() < end_of_patience(started_, deadline_));
  }
  const auto& addresses = std::get<std::vector<Address>>(found);
  std::string all;
  for (const Address& address : addresses) {
    all += (all.empty() ? "" : " and ") + endpoint_text(address);
  }
  dial_.enter(DialPhase::connecting, all);
  const bool limited = plan_->connect_limit > Duration::zero();
  const Time until = limited ? std::min(deadline_, now() + plan_->connect_limit) : deadline_;
  auto connected = connect_first(addresses, until, dial_.cancelled_fd(), plan_->bind_address);
  if (const auto* failure = std::get_if<ConnectFailure>(&connected)) {
    if (failure->given_up && (!limited || now() >= deadline_)) return Trouble{};
    if (failure->given_up) return unreachable("no answer from " + all, true);
    return unreachable(failure->text, true);
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
  if (Attempted trouble = log_in(*link_, target_, *plan_, endpoint_, wait_)) {
    // Many failed logins look like an attack.
    trouble->transient = trouble->transient && ++lost_logins_ < kMostLostLogins;
    return trouble;
  }
  return start_command();
}

// A host that is being set up has no name yet, or no sshd, and a flooded sshd drops connections at
// random (MaxStartups): that is tried again until the deadline. What a host says about keys is
// final.
DialResult Dialler::run() {
  for (int tries = 1;; ++tries) {
    Attempted trouble = attempt();
    if (!trouble) return std::move(link_);
    if (!trouble->transient) {
      if (tries > 1 && !trouble->text.empty()) {
        trouble->text += " (tried again for " + format_duration(now() - started_) + ")";
      }
      return DialFailure{trouble->text, trouble->openssh};
    }
    dial_.note_trouble(trouble->text);
    dial_.enter(DialPhase::pausing, endpoint_.where);
    if (!pause(pause_before_try(tries))) return DialFailure{};
  }
}

struct Task {
  std::shared_ptr<Dial> dial;
  SshTarget target;
};

void* run_task(void* argument) {
  const std::unique_ptr<Task> task(static_cast<Task*>(argument));
  task->dial->finish(Dialler(*task->dial, task->target).run());
  return nullptr;
}

}  // namespace

std::shared_ptr<Dial> Dial::start(SshTarget target) {
  start_libssh();
  if (!target.lookup) target.lookup = std::make_shared<SshLookup>(target.config);
  const std::shared_ptr<Dial> dial(
      new Dial(Fd(eventfd(0, EFD_CLOEXEC)), Fd(eventfd(0, EFD_CLOEXEC))));
  HVD_CHECK(dial->done_ && dial->cancelled_);
  auto task = std::make_unique<Task>(Task{dial, std::move(target)});
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, kStack);
  pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
  // Signals are the loop's business.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int failed = pthread_create(&thread, &small, run_task, task.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&small);
  if (failed == 0) {
    static_cast<void>(task.release());  // the thread's now
  } else {
    dial->finish(DialFailure{"cannot reach " + task->target.label +
                             ": no thread can be started for it: " + std::strerror(failed)});
  }
  return dial;
}

std::optional<DialResult> Dial::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(result_, std::nullopt);
}

void Dial::cancel() {
  eventfd_write(cancelled_.get(), 1);
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

void Dial::finish(DialResult result) {
  const std::lock_guard lock(mutex_);
  result_ = std::move(result);
  eventfd_write(done_.get(), 1);
}

}  // namespace hvd
