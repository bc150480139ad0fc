#include "tests/agent/agent_process.h"

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <memory>

#include "supervisor/agent/folder.h"

namespace hvd::test {

std::string fresh_job() {
  static int count = 0;
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

AgentProcess::AgentProcess(AgentSetup setup) : setup_(std::move(setup)) {
  SpawnSpec spec;
  spec.program = HVD_TEST_AGENT;
  spec.argv = {"hvdlaunch", "--job", setup_.job, "--host", std::to_string(setup_.host)};
  if (setup_.attach) spec.argv.emplace_back("--attach");
  spec.environment = setup_.environment;
  Pipe err = std::move(*make_pipe());
  spec.err = err.write.get();
  Fd far_in, far_out;
  if (setup_.pipes) {
    Pipe in = std::move(*make_pipe()), out = std::move(*make_pipe());
    in_ = std::move(in.write);
    far_in = std::move(in.read);
    out_ = std::move(out.read);
    far_out = std::move(out.write);
  } else {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    in_ = Fd(ends[0]);
    out_ = Fd(fcntl(ends[0], F_DUPFD_CLOEXEC, 3));
    far_in = Fd(ends[1]);
    far_out = Fd(fcntl(ends[1], F_DUPFD_CLOEXEC, 3));
  }
  spec.in = far_in.get();
  spec.out = far_out.get();
  SpawnResult result = spawn(spec);
  if (const auto* failure = std::get_if<SpawnFailure>(&result)) FAIL(failure->text);
  child_ = std::move(std::get<Child>(result));
  err_ = std::move(err.read);
  set_nonblocking(err_.get());
  std::signal(SIGPIPE, SIG_IGN);
}

AgentProcess::~AgentProcess() {
  hang_up();
  // It would go on without a launcher.
  if (setup_.survive > 0s && !setup_.attach && !ended()) kill(child_.pid, SIGKILL);
  if (!wait_until([&] { return ended(); }, 10s)) {
    kill(child_.pid, SIGKILL);
    reap(child_);
  }
  for (const pid_t pid : tree_of(setup_.job)) kill(pid, SIGKILL);
}

AgentHello AgentProcess::greet() {
  LauncherHello hello;
  hello.job = setup_.job;
  hello.host_name = "node-a";
  hello.silence_ns = static_cast<uint64_t>(setup_.silence.count());
  hello.failure_grace_ns = static_cast<uint64_t>(setup_.failure_grace.count());
  hello.survive_ns = static_cast<uint64_t>(setup_.survive.count());
  hello.session = setup_.session;
  hello.launcher = "somebody";
  hello.attach = setup_.attach;
  hello.take_over = setup_.take_over;
  hello.heard = setup_.heard;
  send(hello);
  return expect<AgentHello>();
}

void AgentProcess::send(const ToAgent& message) {
  send_raw(to_frame(message));
}

void AgentProcess::send_raw(const std::string& bytes) {
  static_cast<void>(write_all(in_.get(), bytes));
}

void AgentProcess::take_bytes(std::string bytes) {
  if (!greeted_) {
    before_ += bytes;
    const size_t start = before_.find(kAgentGreeting), end = before_.find('\n', start);
    if (start == std::string::npos || end == std::string::npos) return;
    greeting = before_.substr(start, end - start);
    bytes = before_.substr(end + 1);
    greeted_ = true;
  }
  reader_.feed(bytes);
  while (const auto body = reader_.next()) {
    std::optional<FromAgent> message = parse_from_agent(*body);
    REQUIRE(message.has_value());
    const Beat* beat = std::get_if<Beat>(&*message);
    if (beat != nullptr && echo) send(Echo{beat->agent_time});
    waiting_.push_back(std::move(*message));
  }
}

void AgentProcess::read_some(Duration wait) {
  if (!out_) {
    poll(nullptr, 0, 1);
    return;
  }
  pollfd in{out_.get(), POLLIN, 0};
  if (poll(&in, 1, static_cast<int>(wait / 1ms)) != 1) return;
  char block[65536];
  const ssize_t n = read(out_.get(), block, sizeof block);
  if (n > 0) {
    take_bytes({block, static_cast<size_t>(n)});
  } else {
    out_.reset();
  }
}

bool AgentProcess::pump_until(const std::function<bool()>& done, Duration limit) {
  const Time deadline = now() + limit;
  while (!done()) {
    if (now() >= deadline) return false;
    read_some(10ms);
  }
  return true;
}

std::string AgentProcess::take_output(uint32_t rank, Stream stream, uint32_t attempt) {
  std::string text;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const Output* output = std::get_if<Output>(&*it);
    const bool fits = output != nullptr && output->rank == rank && output->stream == stream &&
                      output->attempt == attempt;
    if (fits) text += output->bytes;
    it = fits ? waiting_.erase(it) : std::next(it);
  }
  return text;
}

StartAttempt AgentProcess::attempt(std::vector<std::string> argv, uint32_t ranks, uint32_t number) {
  StartAttempt start;
  start.attempt = number;
  start.size = ranks;
  start.host_count = 1;
  for (uint32_t i = 0; i < ranks; ++i) start.places.push_back({i, i, 0, 1});
  start.argv = std::move(argv);
  start.workdir = "/";
  start.data_address = "127.0.0.1";
  start.master_address = "127.0.0.1";
  start.secret = "sesame";
  start.credit = 1u << 20;
  return start;
}

StartAttempt AgentProcess::shell(const std::string& script, uint32_t ranks, uint32_t number) {
  return attempt({"/bin/sh", "-c", script}, ranks, number);
}

void AgentProcess::hang_up() {
  in_.reset();
  out_.reset();
}

bool AgentProcess::ended() {
  if (status_) return true;
  pollfd end{child_.pidfd.get(), POLLIN, 0};
  if (poll(&end, 1, 0) != 1) return false;
  const Ending ending = reap(child_);
  status_ = ending.signal != 0 ? 128 + ending.signal : ending.exit_code;
  return true;
}

int AgentProcess::wait_end() {
  if (!pump_until([&] { return ended(); }))
    FAIL("the agent did not end; it said: " << read_errors());
  return *status_;
}

std::string AgentProcess::read_errors() {
  char block[4096];
  ssize_t n;
  while ((n = read(err_.get(), block, sizeof block)) > 0) errors_.append(block, n);
  return errors_;
}

pid_t AgentProcess::agent() const {
  const std::string path =
      "/proc/" + std::to_string(keeper()) + "/task/" + std::to_string(keeper()) + "/children";
  // A file of /proc: read_file takes regular files of any size, and this is one.
  const Result<std::string> text = read_file(path, 4096);
  REQUIRE(text.ok());
  return static_cast<pid_t>(std::atoi(text->c_str()));
}

bool AgentProcess::lock_is_free() const {
  const std::string name = "hvdlaunch-" + setup_.job + "-0";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) == 0;
}

std::vector<pid_t> tree_of(const std::string& job) {
  std::vector<pid_t> pids;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  const std::string mark = "HVD_JOB_ID=" + job;
  while (const dirent* entry = readdir(proc.get())) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    // Empty for zombies, which are dead.
    const Result<std::string> text =
        read_file("/proc/" + std::string(entry->d_name) + "/environ", 1u << 20);
    if (text && text->find(mark + '\0') != std::string::npos) pids.push_back(pid);
  }
  return pids;
}

bool wait_until(const std::function<bool()>& done, Duration limit) {
  const Time deadline = now() + limit;
  while (!done()) {
    if (now() >= deadline) return false;
    poll(nullptr, 0, 2);
  }
  return true;
}

bool tree_is_dead(const std::string& job, Duration limit) {
  return wait_until([&] { return tree_of(job).empty(); }, limit);
}

bool exists(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

TestFolder::TestFolder() {
  char path[] = "/tmp/hvd-agent-test-XXXXXX";
  REQUIRE(mkdtemp(path) != nullptr);
  path_ = path;
}

TestFolder::~TestFolder() {
  static_cast<void>(remove_tree(AT_FDCWD, path_));
}

void fail_missing(const char* type, const std::string& errors) {
  FAIL("no such message came: " << type << "; the agent said: " << errors);
}

}  // namespace hvd::test
