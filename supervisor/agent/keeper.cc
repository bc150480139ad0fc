#include "supervisor/agent/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>

#include "base/process.h"
#include "supervisor/agent/complain.h"
#include "supervisor/agent/folder.h"

namespace hvd {

namespace {

using namespace std::chrono_literals;

// How long a second agent waits for the first one's tree to be dead, and how often it looks.
constexpr Duration kLockWait = 60s;
constexpr int kLockPollMs = 5;
// A process that outlives KILL sits in the kernel, on a disk or a device. It is waited for in
// rounds, as long as this.
constexpr int kKillRoundMs = 5'000;
constexpr int kKillRounds = 60;

// Only death by KILL, which nobody can refuse, ends these processes from outside: a terminal's
// Ctrl-C or a closing session must leave the stopping in order to the launcher.
void detach() {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGQUIT, SIGPIPE, SIGTSTP, SIGTTIN, SIGTTOU}) {
    std::signal(signal, SIG_IGN);
  }
  // A leader of a process group may not make a session: it joins its parent's group first.
  if (getsid(0) != getpid() && setsid() < 0 && setpgid(0, getpgid(getppid())) == 0) setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

bool launcher_hung_up(int wait_ms) {
  pollfd in{STDIN_FILENO, 0, 0};
  return poll(&in, 1, wait_ms) == 1 && (in.revents & (POLLHUP | POLLERR)) != 0;
}

// Names in the abstract space vanish with the last process that holds them, whatever ends it.
Result<Fd> take_lock(const std::string& job, uint32_t host) {
  const std::string name = "hvdlaunch-" + job + "-" + std::to_string(host);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  HVD_CHECK(name.size() + 1 <= sizeof address.sun_path);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Fd lock(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!lock) return errno_error("cannot make a socket", errno);
  const Time deadline = now() + kLockWait;
  while (bind(lock.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != EADDRINUSE) return errno_error("cannot take the lock " + name, errno);
    if (now() >= deadline) {
      return Error{"another agent of job " + job + " still runs here after " +
                   format_duration(kLockWait)};
    }
    if (launcher_hung_up(kLockPollMs)) {
      return Error{"the launcher hung up while an earlier agent of job " + job + " still ran here"};
    }
  }
  return lock;
}

bool make_folder_in(const std::string& parent, std::string& folder) {
  // Leaves room for a socket's own name in the 108 bytes of sun_path.
  constexpr size_t kLongest = 64;
  folder = parent + "/hvd-XXXXXX";
  return parent.size() <= kLongest && parent.front() == '/' && mkdtemp(folder.data()) != nullptr;
}

Result<std::string> make_socket_folder() {
  std::string folder;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime != 0 && make_folder_in(runtime, folder)) return folder;
  // Sockets are made and removed faster in memory than on a disk.
  for (const char* parent : {"/dev/shm", "/tmp"}) {
    if (make_folder_in(parent, folder)) return folder;
  }
  return errno_error("cannot make a folder for sockets in /tmp", errno);
}

struct Guard {
  pid_t agent;
  Fd agent_pidfd;
  Fd leases;
  Fd timer;  // on CLOCK_BOOTTIME, so that time asleep counts
};

void arm(const Guard& guard, Time end) {
  const int64_t ns = end.time_since_epoch().count();
  itimerspec when{};
  when.it_value.tv_sec = ns / 1'000'000'000;
  when.it_value.tv_nsec = ns % 1'000'000'000;
  timerfd_settime(guard.timer.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

// Takes all leases that wait. False when the agent's end is closed.
bool take_leases(const Guard& guard, Time& lease) {
  int64_t end = 0;
  ssize_t n;
  while ((n = recv(guard.leases.get(), &end, sizeof end, MSG_DONTWAIT)) == sizeof end) {
    lease = Time(Duration(end));
  }
  arm(guard, lease);
  return n != 0;
}

// Waits for the agent's end or the lease's. Returns the agent's exit code, or 1.
int watch_over(Guard& guard, Time lease) {
  arm(guard, lease);
  while (true) {
    pollfd fds[3] = {{guard.agent_pidfd.get(), POLLIN, 0},
                     {guard.leases.get(), POLLIN, 0},
                     {guard.timer.get(), POLLIN, 0}};
    if (poll(fds, 3, -1) < 0) continue;
    if (fds[0].revents != 0) {
      const Ending ending = reap(Child{guard.agent, std::move(guard.agent_pidfd)});
      return ending.signal == 0 ? ending.exit_code : 1;
    }
    // Before the clock is believed, so that a keeper that slept hears what came meanwhile.
    if (fds[1].revents != 0 && !take_leases(guard, lease)) guard.leases.reset();
    if (now() >= lease) {
      kill(guard.agent, SIGKILL);
      complain("the lease is over; all processes of the job on this host were killed");
      return 1;
    }
  }
}

// The launcher's words are the agent's to read.
void drop_input() {
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null) dup2(null.get(), STDIN_FILENO);
}

}  // namespace

void kill_whole_tree() {
  for (int round = 0; round < kKillRounds && !kill_all_descendants(kKillRoundMs); ++round) {
    if (round == 0) complain("waiting for processes of the job that do not die of KILL");
  }
}

void send_lease(const AgentSeat& seat, Time end) {
  const int64_t ns = end.time_since_epoch().count();
  static_cast<void>(send(seat.keeper.get(), &ns, sizeof ns, MSG_DONTWAIT | MSG_NOSIGNAL));
}

void remove_socket_folder(const std::string& folder) {
  static_cast<void>(remove_tree(AT_FDCWD, folder));
}

int keep(const std::string& job, uint32_t host, const std::function<int(AgentSeat)>& agent) {
  detach();
  const Result<Fd> lock = take_lock(job, host);
  const Result<std::string> folder =
      lock ? make_socket_folder() : Result<std::string>(lock.error());
  if (!folder) {
    complain(folder.error().text);
    return 1;
  }
  int ends[2];
  HVD_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  Fd keeper_end(ends[0]), agent_end(ends[1]);
  const Time lease = now() + kStartLease;
  const pid_t pid = fork();
  if (pid == 0) {
    // The lock stays open here too: it must outlive a keeper that is killed.
    keeper_end.reset();
    detach();
    _exit(agent(AgentSeat{std::move(agent_end), *folder, lease}));
  }
  agent_end.reset();
  int status = 1;
  if (pid > 0) {
    drop_input();
    Guard guard{pid, Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))), std::move(keeper_end),
                Fd(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC))};
    HVD_CHECK(guard.agent_pidfd.valid() && guard.timer.valid());
    status = watch_over(guard, lease);
  } else {
    complain(std::string("cannot start a process: ") + std::strerror(errno));
  }
  kill_whole_tree();
  remove_socket_folder(*folder);
  return status;
}

}  // namespace hvd
