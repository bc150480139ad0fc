#include "supervisor/agent/stacks.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>

#include "base/process.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

// Less is not enough for a debugger to start.
constexpr Duration kDebuggerTime = 1s;
constexpr size_t kMostText = 64u << 10;  // of a rank
constexpr size_t kMostProcesses = 32, kMostThreads = 64;
constexpr size_t kLongestFile = 4096, kLongestCommand = 4u << 20;
constexpr size_t kMostOfCommand = 400;

std::string proc(pid_t pid, const std::string& name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

std::string first_line_of(const std::string& path) {
  const Result<std::string> text = read_file(path, kLongestFile);
  return text ? text->substr(0, text->find('\n')) : "";
}

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(proc(pid, "task").c_str()), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const pid_t thread = std::atoi(entry->d_name);
    if (thread > 0) threads.push_back(thread);
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::vector<pid_t> tree_of(pid_t main) {
  std::vector<pid_t> tree = {main};
  for (size_t i = 0; i < tree.size() && tree.size() < kMostProcesses; ++i) {
    for (const pid_t thread : threads_of(tree[i])) {
      std::istringstream children(
          first_line_of(proc(tree[i], "task/" + std::to_string(thread) + "/children")));
      for (pid_t child; children >> child;) tree.push_back(child);
    }
  }
  return tree;
}

// "waits in futex_wait_queue, 1.25 s of CPU, state S"
std::string describe_thread(pid_t pid, pid_t thread) {
  const std::string folder = proc(pid, "task/" + std::to_string(thread) + "/");
  const std::string stat = first_line_of(folder + "stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(stat.substr(name_end + 1));
  std::string state, skipped;
  uint64_t user = 0, system = 0;
  constexpr int kBetween = 10;  // fields, from state to the times
  fields >> state;
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  fields >> user >> system;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::ostringstream text;
  text << "  thread " << thread << " " << first_line_of(folder + "comm") << ": state " << state
       << ", " << static_cast<double>(user + system) / ticks << " s of CPU";
  const std::string wait = first_line_of(folder + "wchan");
  if (!wait.empty() && wait != "0") text << ", waits in " << wait;
  text << "\n";
  // Only root may read it.
  const Result<std::string> stack = read_file(folder + "stack", kLongestFile);
  std::istringstream lines(stack ? *stack : "");
  for (std::string line; std::getline(lines, line);) text << "    " << line << "\n";
  return text.str();
}

std::string describe_process(pid_t pid) {
  Result<std::string> words = read_file(proc(pid, "cmdline"), kLongestCommand);
  if (!words) return "";
  std::replace(words->begin(), words->end(), '\0', ' ');
  if (words->size() > kMostOfCommand) words->resize(kMostOfCommand);
  std::string text = "process " + std::to_string(pid) + ": " + *words + "\n";
  const std::vector<pid_t> threads = threads_of(pid);
  for (size_t i = 0; i < threads.size() && i < kMostThreads; ++i) {
    text += describe_thread(pid, threads[i]);
  }
  if (threads.size() > kMostThreads) {
    text += "  and " + std::to_string(threads.size() - kMostThreads) + " threads more\n";
  }
  return text;
}

// ---- debuggers ----

std::optional<std::string> in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  auto found = find_program(name, path == nullptr ? "/usr/bin:/bin" : path, "/");
  if (auto* program = std::get_if<std::string>(&found)) return std::move(*program);
  return std::nullopt;
}

bool is_python(pid_t pid) {
  char target[4096];
  const ssize_t n = readlink(proc(pid, "exe").c_str(), target, sizeof target);
  const std::string_view path(target, n > 0 ? static_cast<size_t>(n) : 0);
  return path.substr(path.rfind('/') + 1).starts_with("python");
}

// Without a program for it: nothing.
std::vector<std::string> debugger_for(pid_t pid) {
  const std::string number = std::to_string(pid);
  if (is_python(pid)) {
    if (const auto py_spy = in_path("py-spy")) return {*py_spy, "dump", "--pid", number};
  }
  const auto gdb = in_path("gdb");
  if (!gdb) return {};
  return {
      *gdb, "-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "thread apply all bt 40",
      "-p", number};
}

std::string read_until_end(int out, Time until) {
  std::string text;
  char block[4096];
  while (text.size() < kMostText) {
    pollfd ready{out, POLLIN, 0};
    if (poll(&ready, 1, poll_timeout(until, now())) != 1) break;
    const ssize_t n = read(out, block, sizeof block);
    if (n <= 0) break;
    text.append(block, static_cast<size_t>(n));
  }
  return text;
}

std::string run(const std::vector<std::string>& argv, Time until) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  const Fd out(ends[0]);
  Fd in(ends[1]);
  SpawnSpec spec;
  spec.program = argv[0];
  spec.argv = argv;
  for (char** word = environ; word != nullptr && *word != nullptr; ++word) {
    spec.environment.emplace_back(*word);
  }
  spec.out = in.get();
  spec.new_session = true;
  spec.die_with_parent = true;
  const SpawnResult started = spawn(spec);
  in.reset();
  const auto* child = std::get_if<Child>(&started);
  if (child == nullptr) return std::get<SpawnFailure>(started).text + "\n";
  std::string text = read_until_end(out.get(), until);
  if (now() >= until) text += "(" + argv[0] + " did not end in time)\n";
  syscall(SYS_pidfd_send_signal, child->pidfd.get(), SIGKILL, nullptr, 0);
  // The loop reaps what it does not know, perhaps before us.
  waitpid(child->pid, nullptr, 0);
  return text;
}

std::string call_stacks(pid_t pid, Time until) {
  if (until - now() < kDebuggerTime) return "";
  const std::vector<std::string> debugger = debugger_for(pid);
  return debugger.empty() ? "" : run(debugger, until);
}

}  // namespace

StacksTaken take_stacks(const TakeStacks& request, const std::vector<RankProcess>& ranks) {
  const Time until = now() + bounded(request.limit_ns);
  StacksTaken taken{request.attempt, request.request, {}};
  // What costs nothing first: time may not reach for more.
  for (const RankProcess& one : ranks) {
    std::string text;
    for (const pid_t pid : tree_of(one.pid)) text += describe_process(pid);
    taken.ranks.push_back({one.rank, std::move(text)});
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    std::string& text = taken.ranks[i].text;
    text += call_stacks(ranks[i].pid, until);
    if (text.size() > kMostText) text.resize(kMostText);
  }
  return taken;
}

}  // namespace hvd
