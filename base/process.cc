#include "base/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>

#include "base/exit_codes.h"
#include "base/time.h"

namespace hvd {

namespace {

enum class Stage { none, session, processors, descriptors, workdir, exec };

const char* describe(Stage stage) {
  switch (stage) {
    case Stage::session:
      return "cannot start a session for it";
    case Stage::processors:
      return "cannot bind it to its processors";
    case Stage::descriptors:
      return "cannot set up its descriptors";
    case Stage::workdir:
      return "cannot enter its directory";
    case Stage::none:
    case Stage::exec:
      break;
  }
  return "cannot run it";
}

// What the child tells the parent through the memory they share until exec.
struct Report {
  Stage stage = Stage::none;
  int number = 0;
};

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  list.reserve(words.size() + 1);
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

// A set as sched_setaffinity takes it.
class ProcessorSet {
 public:
  explicit ProcessorSet(const std::vector<unsigned>& processors) {
    const auto highest = std::max_element(processors.begin(), processors.end());
    if (highest == processors.end()) return;
    bits_.resize(*highest / kBits + 1);
    for (const unsigned processor : processors) {
      bits_[processor / kBits] |= 1ul << (processor % kBits);
    }
  }
  // Binds the calling process; an empty set leaves it as it is.
  bool bind() const {
    return bits_.empty() ||
           sched_setaffinity(0, bits_.size() * sizeof bits_[0],
                             reinterpret_cast<const cpu_set_t*>(bits_.data())) == 0;
  }

 private:
  static constexpr unsigned kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> bits_;
};

// The child's side between vfork and exec: system calls only.
struct ChildSteps {
  const SpawnSpec& spec;
  char** argv;
  char** shell_argv;
  char** environment;
  const ProcessorSet& processors;
  pid_t parent;
  volatile Report* report;

  [[noreturn]] void fail(Stage stage) const {
    report->stage = stage;
    report->number = errno;
    _exit(kExitNotFound);
  }

  void place_descriptors() const {
    const int wanted[3] = {spec.in, spec.out, spec.err};
    int high[3];
    // First above 2, so that no source is overwritten before it is used.
    for (int i = 0; i < 3; ++i) {
      const int source = wanted[i] >= 0
                             ? wanted[i]
                             : open("/dev/null", (i == 0 ? O_RDONLY : O_WRONLY) | O_CLOEXEC);
      high[i] = source < 0 ? -1 : fcntl(source, F_DUPFD_CLOEXEC, 3);
      if (high[i] < 0) fail(Stage::descriptors);
    }
    for (int i = 0; i < 3; ++i) {
      if (dup2(high[i], i) < 0) fail(Stage::descriptors);
    }
    syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
  }

  void limit_files() const {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = spec.file_limit;
    setrlimit(RLIMIT_NOFILE, &limit);
  }

  static void default_signals() {
    for (int signal = 1; signal < NSIG; ++signal) std::signal(signal, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
  }

  [[noreturn]] void run() const {
    if (spec.die_with_parent) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(kExitNotFound);
    }
    if (spec.new_session && setsid() < 0) fail(Stage::session);
    if (!processors.bind()) fail(Stage::processors);
    if (!spec.workdir.empty() && chdir(spec.workdir.c_str()) != 0) fail(Stage::workdir);
    place_descriptors();
    if (spec.file_limit > 0) limit_files();
    default_signals();
    execve(spec.program.c_str(), argv, environment);
    // A script without a #! line is run by the shell, as every shell does.
    if (errno == ENOEXEC) execve("/bin/sh", shell_argv, environment);
    fail(Stage::exec);
  }
};

}  // namespace

SpawnResult spawn(const SpawnSpec& spec) {
  std::vector<char*> argv = pointers(spec.argv);
  std::vector<char*> environment = pointers(spec.environment);
  std::vector<std::string> shell_words = {"sh", spec.program};
  for (size_t i = 1; i < spec.argv.size(); ++i) shell_words.push_back(spec.argv[i]);
  std::vector<char*> shell_argv = pointers(shell_words);

  // The child runs on this memory until exec: no handler may run there.
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  volatile Report report{};
  const ProcessorSet processors(spec.processors);
  const ChildSteps steps{spec,     argv.data(), shell_argv.data(), environment.data(), processors,
                         getpid(), &report};
  const pid_t pid = vfork();
  if (pid == 0) steps.run();
  const int fork_errno = errno;
  sigprocmask(SIG_SETMASK, &before, nullptr);

  if (pid < 0) {
    return SpawnFailure{std::string("cannot start a process: ") + std::strerror(fork_errno),
                        kExitGaveUp};
  }
  if (report.stage != Stage::none) {
    waitpid(pid, nullptr, 0);
    const int number = report.number;
    return SpawnFailure{
        spec.program + ": " + describe(report.stage) +
            (report.stage == Stage::workdir ? " " + spec.workdir : "") + ": " +
            std::strerror(number),
        number == ENOENT && report.stage == Stage::exec ? kExitNotFound : kExitCannotRun};
  }
  Child child;
  child.pid = pid;
  child.pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!child.pidfd) {
    const int number = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return SpawnFailure{std::string("cannot watch a process: ") + std::strerror(number),
                        kExitCannotRun};
  }
  return child;
}

namespace {

// 0 if `path` can be run, else the errno to report.
int runnable(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return errno;
  if (S_ISDIR(st.st_mode)) return EISDIR;
  return access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

// How a script is run that cannot be run by itself, for the end of a sentence; empty for no script.
std::string by_its_language(const std::string& name) {
  if (name.ends_with(".py")) return "; write python3 " + name;
  return name.ends_with(".sh") ? "; write sh " + name : "";
}

// Where PATH does not lead to the program, but a file of its name is where it would start.
std::string file_meant(const std::string& name, const std::string& workdir) {
  struct stat st;
  const std::string file = workdir + "/" + name;
  if (workdir.empty() || name.empty() || stat(file.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) {
    return "";
  }
  if (access(file.c_str(), X_OK) == 0) return "; for the file in " + workdir + " write ./" + name;
  const std::string how = by_its_language(name);
  return how.empty() ? "; the file of that name in " + workdir + " is not executable" : how;
}

}  // namespace

uint64_t raise_file_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const uint64_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return before;
}

std::variant<std::string, SpawnFailure> find_program(const std::string& name,
                                                     const std::string& path,
                                                     const std::string& workdir) {
  const auto failure = [&](int number) {
    return SpawnFailure{name + ": cannot run it: " + std::strerror(number) +
                            (number == EACCES ? by_its_language(name) : ""),
                        number == ENOENT || number == ENOTDIR ? kExitNotFound : kExitCannotRun};
  };
  if (name.find('/') != std::string::npos) {
    const std::string full = name[0] == '/' || workdir.empty() ? name : workdir + "/" + name;
    const int number = runnable(full);
    if (number != 0) return failure(number);
    return full;
  }
  int found_but = 0;
  std::string_view rest = path;
  while (!name.empty()) {
    const size_t colon = rest.find(':');
    std::string folder(rest.substr(0, colon));
    if (folder.empty() || folder[0] != '/')
      folder = (workdir.empty() ? "." : workdir) + "/" + folder;
    const std::string full = folder + "/" + name;
    const int number = runnable(full);
    if (number == 0) return full;
    if (number != ENOENT && number != ENOTDIR && number != EISDIR) found_but = number;
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (found_but != 0) return failure(found_but);
  return SpawnFailure{"'" + name + "' was not found in PATH" + file_meant(name, workdir),
                      kExitNotFound};
}

Ending reap(const Child& child) {
  siginfo_t info{};
  while (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(child.pidfd.get()), &info,
                WEXITED) != 0) {
    HVD_CHECK(errno == EINTR);
  }
  if (info.si_code == CLD_EXITED) return Ending{info.si_status, 0};
  return Ending{0, info.si_status};
}

char process_state(pid_t pid) {
  constexpr size_t kLongestStat = 4096;
  const Result<std::string> stat =
      read_file("/proc/" + std::to_string(pid) + "/stat", kLongestStat);
  // The name in brackets may hold anything.
  const size_t name_end = stat ? stat->rfind(')') : std::string::npos;
  return name_end == std::string::npos || name_end + 2 >= stat->size() ? '\0'
                                                                       : (*stat)[name_end + 2];
}

int ended_by(pid_t pid) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return 0;
  return info.si_pid == pid && info.si_code != CLD_EXITED ? info.si_status : 0;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

namespace {

// Appends the children that one thread of a process has started.
void append_children(pid_t pid, pid_t thread, std::vector<pid_t>& out) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, thread);
  const Fd fd(open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return;
  char block[4096];
  pid_t number = 0;
  bool digits = false;
  ssize_t n;
  while ((n = read(fd.get(), block, sizeof block)) > 0) {
    for (ssize_t i = 0; i < n; ++i) {
      if (block[i] >= '0' && block[i] <= '9') {
        number = number * 10 + (block[i] - '0');
        digits = true;
      } else if (digits) {
        out.push_back(number);
        number = 0;
        digits = false;
      }
    }
  }
}

// Every descendant of the calling process by way of main threads, parents before their children.
std::vector<pid_t> descendants() {
  std::vector<pid_t> tree;
  append_children(getpid(), getpid(), tree);
  for (size_t i = 0; i < tree.size(); ++i) append_children(tree[i], tree[i], tree);
  return tree;
}

// The same by way of all threads, which costs more.
std::vector<pid_t> descendants_of_all_threads() {
  std::vector<pid_t> tree;
  append_children(getpid(), getpid(), tree);
  for (size_t i = 0; i < tree.size(); ++i) {
    const std::string tasks = "/proc/" + std::to_string(tree[i]) + "/task";
    const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir(tasks.c_str()), closedir);
    while (const dirent* entry = threads ? readdir(threads.get()) : nullptr) {
      const pid_t thread = std::atoi(entry->d_name);
      if (thread > 0) append_children(tree[i], thread, tree);
    }
  }
  return tree;
}

}  // namespace

bool kill_all_descendants(int limit_ms) {
  const Time deadline = now() + std::chrono::milliseconds(limit_ms);
  // Most are gone within microseconds, and somebody waits for that.
  timespec pause{0, 20'000};
  // A kill can race with a fork: the walk is repeated until it finds nobody. Children of threads
  // other than the main one show up here once their parent died and they came to the subreaper.
  while (true) {
    for (const pid_t pid : descendants()) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return true;
    if (now() >= deadline) return false;
    nanosleep(&pause, nullptr);
    pause.tv_nsec = std::min(2 * pause.tv_nsec, 1'000'000L);
  }
}

void reap_orphans(const std::vector<pid_t>& kept) {
  std::vector<pid_t> children;
  append_children(getpid(), getpid(), children);
  for (const pid_t pid : children) {
    if (std::find(kept.begin(), kept.end(), pid) == kept.end()) waitpid(pid, nullptr, WNOHANG);
  }
}

void stop_descendants() {
  std::set<pid_t> stopped;
  for (bool found = true; found;) {
    found = false;
    for (const pid_t pid : descendants_of_all_threads()) {
      if (!stopped.insert(pid).second) continue;
      found = true;
      kill(pid, SIGSTOP);
    }
  }
}

void continue_descendants() {
  for (const pid_t pid : descendants_of_all_threads()) kill(pid, SIGCONT);
}

bool kill_descendants_once(const std::vector<pid_t>& kept) {
  for (const pid_t pid : descendants()) kill(pid, SIGKILL);
  reap_orphans(kept);
  siginfo_t info{};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD;
}

}  // namespace hvd
