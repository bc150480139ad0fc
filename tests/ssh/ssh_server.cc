#include "tests/ssh/ssh_server.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace hvd::testing {

using namespace std::chrono_literals;

TemporaryFolder::TemporaryFolder() {
  char name[] = "/tmp/hvd-ssh-XXXXXX";
  REQUIRE(mkdtemp(name) != nullptr);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::string& path, const std::string& content) {
  REQUIRE(replace_file(path, content, 0600).ok());
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

namespace {

std::vector<std::string> environment() {
  std::vector<std::string> list;
  for (char** entry = environ; *entry != nullptr; ++entry) list.emplace_back(*entry);
  return list;
}

Child start(const std::vector<std::string>& argv, int out, int err) {
  SpawnSpec spec;
  const auto program = find_program(argv[0], std::string(getenv("PATH")) + ":/usr/sbin", "/");
  REQUIRE(std::holds_alternative<std::string>(program));
  spec.program = std::get<std::string>(program);
  spec.argv = argv;
  spec.argv[0] = spec.program;
  spec.environment = environment();
  spec.out = out;
  spec.err = err;
  spec.die_with_parent = true;
  SpawnResult result = spawn(spec);
  REQUIRE(std::holds_alternative<Child>(result));
  return std::move(std::get<Child>(result));
}

sockaddr_in loopback(const std::string& address, int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  REQUIRE(inet_pton(AF_INET, address.c_str(), &to.sin_addr) == 1);
  return to;
}

Fd listening_socket(const std::string& address, int& port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in at = loopback(address, port);
  REQUIRE(bind(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  socklen_t size = sizeof at;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &size);
  port = ntohs(at.sin_port);
  return socket;
}

std::string user_name() {
  const passwd* entry = getpwuid(getuid());
  REQUIRE(entry != nullptr);
  return entry->pw_name;
}

// Nanoseconds this thread ran, and waited for a processor.
Duration busy_time() {
  long long ran = 0;
  long long queued = 0;
  std::ifstream("/proc/thread-self/schedstat") >> ran >> queued;
  return Duration(ran + queued);
}

}  // namespace

std::string run_program(const std::vector<std::string>& argv) {
  auto pipe = make_pipe();
  REQUIRE(pipe.ok());
  const Child child = start(argv, pipe->write.get(), STDERR_FILENO);
  pipe->write.reset();
  std::string text;
  char block[4096];
  for (ssize_t n; (n = read(pipe->read.get(), block, sizeof block)) > 0;) {
    text.append(block, static_cast<size_t>(n));
  }
  const Ending ending = reap(child);
  INFO(argv[0]);
  REQUIRE(ending.exit_code == 0);
  REQUIRE(ending.signal == 0);
  return text;
}

void not_run(const std::string& what) {
  std::printf("NOT RUN: %s\n", what.c_str());
}

bool have_program(const std::string& name) {
  return std::holds_alternative<std::string>(find_program(name, getenv("PATH"), "/"));
}

Running::Running(const std::vector<std::string>& argv, const std::string& log) {
  std::ofstream(log).flush();
  const Fd out(open(log.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  child_ = start(argv, out.get(), out.get());
}

Running::~Running() {
  kill(child_.pid, SIGKILL);
  reap(child_);
}

int free_port(const std::string& address) {
  int port = 0;
  listening_socket(address, port);
  return port;
}

SshServer::SshServer(Options options) : options_(std::move(options)) {
  if (options_.port == 0) options_.port = free_port(options_.address);
  run_program({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path("user")});
  std::string known;
  for (const std::string& type : options_.host_key_types) {
    run_program({"ssh-keygen", "-q", "-t", type, "-N", "", "-f", path("host_" + type)});
    known += known_hosts_line(type);
  }
  write_file(path("known_hosts"), known);
  write_file(path("authorized_keys"), file_text(path("user.pub")));
  write_config();
  // As root, sshd wants the folder that the system's start-up makes.
  if (getuid() == 0) mkdir("/run/sshd", 0755);
  process_ = std::make_unique<Running>(
      std::vector<std::string>{"sshd", "-D", "-e", "-f", path("sshd_config")}, path("log"));
  await_port();
}

void SshServer::write_config() const {
  // The first value of a keyword counts.
  std::string text = options_.extra + "ListenAddress " + options_.address + "\nPort " +
                     std::to_string(options_.port) + "\nUsePAM no\nPidFile none\n" +
                     "StrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n" +
                     "AuthorizedKeysFile " + path("authorized_keys") + "\n";
  for (const std::string& type : options_.host_key_types) {
    text += "HostKey " + path("host_" + type) + "\n";
  }
  if (!options_.forced_command.empty()) {
    text += "ForceCommand " + options_.forced_command + "\n";
  }
  write_file(path("sshd_config"), text);
}

void SshServer::await_port() const {
  const sockaddr_in to = loopback(options_.address, options_.port);
  const Time limit = now() + 20s;
  while (true) {
    const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return;
    INFO(file_text(path("log")));
    REQUIRE(now() < limit);
    poll(nullptr, 0, 5);
  }
}

std::string SshServer::known_hosts_line(const std::string& type) const {
  const std::string key = file_text(path("host_" + type + ".pub"));
  return "[" + options_.address + "]:" + std::to_string(options_.port) + " " + key;
}

SshTarget SshServer::target(const std::string& command) const {
  SshTarget target;
  target.label = "h1";
  target.address = options_.address;
  target.port = options_.port;
  target.user = user_name();
  target.identity = path("user");
  target.known_hosts = path("known_hosts");
  target.config = "/dev/null";
  target.command = command;
  target.deadline = now() + 20s;
  return target;
}

Listener::Listener(std::function<void(Fd)> serve) {
  socket_ = listening_socket("127.0.0.2", port_);
  REQUIRE(listen(socket_.get(), 16) == 0);
  auto stop = make_pipe();
  REQUIRE(stop.ok());
  stop_ = std::move(*stop);
  thread_ = std::thread([this, serve = std::move(serve)] {
    while (true) {
      pollfd fds[2] = {{socket_.get(), POLLIN, 0}, {stop_.read.get(), POLLIN, 0}};
      poll(fds, 2, -1);
      if (fds[1].revents != 0) return;
      serve(Fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    }
  });
}

Listener::~Listener() {
  stop_.write.reset();
  thread_.join();
}

SshTarget Listener::target() const {
  SshTarget target;
  target.label = "h3";
  target.address = "127.0.0.2";
  target.port = port_;
  target.known_hosts = "/dev/null";
  target.config = "/dev/null";
  target.command = "true";
  target.deadline = now() + 1500ms;
  return target;
}

Driver::Driver(SshTarget target) : Driver(std::make_unique<SshChannel>(std::move(target))) {}

Driver::~Driver() {
  if (watched_ >= 0) poller_.forget(watched_);
}

void Driver::advance() {
  const Duration busy = busy_time();
  const Time start = now();
  channel_->advance(start);
  const Duration waited = (now() - start) - (busy_time() - busy);
  longest_wait = std::max(longest_wait, waited);
  received += channel_->take_received();
  diagnostics += channel_->take_diagnostics();
}

bool Driver::run(Duration limit, const std::function<bool()>& finished) {
  const Time end = now() + limit;
  while (!finished()) {
    if (now() >= end) return false;
    const int fd = channel_->fd();
    if (watched_ >= 0 && watched_ != fd) poller_.forget(watched_);
    watched_ = fd;
    if (fd >= 0) poller_.watch(fd, 1, channel_->interest());
    poller_.wait(earlier(channel_->deadline(), end));
    advance();
  }
  return true;
}

bool Driver::until_open(Duration limit) {
  return run(limit, [&] { return channel_->state() != ChannelState::opening; }) &&
         channel_->state() == ChannelState::open;
}

bool Driver::until_closed(Duration limit) {
  return run(limit, [&] { return channel_->state() == ChannelState::closed; });
}

}  // namespace hvd::testing
