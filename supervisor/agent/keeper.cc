#include "supervisor/agent/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>

#include "base/process.h"
#include "supervisor/agent/attach_door.h"
#include "supervisor/agent/complain.h"
#include "supervisor/agent/job_name.h"

namespace hvd {

namespace {

using namespace std::chrono_literals;

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

// What else the agent, forked from its keeper, needs of the same. It stays in the keeper's session:
// on a busy machine each new one waits for a time slice, where the kernel schedules by session.
void stand_apart() {
  setpgid(0, 0);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

// Data on the socket and the other end's death come with a CONT, which wakes a process that was
// stopped; to all others it is nothing.
void wake_by(int socket) {
  fcntl(socket, F_SETOWN, getpid());
  fcntl(socket, F_SETSIG, SIGCONT);
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_ASYNC);
}

// A CONT at the end of the lease, for a keeper that was stopped together with its agent.
class WakingTimer {
 public:
  WakingTimer() {
    sigevent how{};
    how.sigev_notify = SIGEV_SIGNAL;
    how.sigev_signo = SIGCONT;
    HVD_CHECK(timer_create(CLOCK_BOOTTIME, &how, &timer_) == 0);
  }
  ~WakingTimer() { timer_delete(timer_); }
  WakingTimer(const WakingTimer&) = delete;
  WakingTimer& operator=(const WakingTimer&) = delete;
  void set(const itimerspec& when) const { timer_settime(timer_, TIMER_ABSTIME, &when, nullptr); }

 private:
  timer_t timer_{};
};

// Whoever kills all that is called hvdlaunch means the job, and its keeper sees to the rest of it.
void change_name() {
  constexpr std::string_view kName = "hvdkeeper";
  prctl(PR_SET_NAME, kName.data());
  char* first = program_invocation_name;
  const size_t length = std::strlen(first);
  const Result<std::string> words = read_file("/proc/self/cmdline", 1 << 20);
  if (!words || length < kName.size() || words->substr(0, length) != first) return;
  const std::string changed = std::string(kName) + words->substr(length);
  std::memset(first, 0, words->size());
  std::memcpy(first, changed.data(), changed.size());
}

struct Guard {
  pid_t agent;
  Fd agent_pidfd;
  Fd leases;
  Fd timer;  // on CLOCK_BOOTTIME, so that time asleep counts
  const WakingTimer& waking_timer;
};

void arm(const Guard& guard, Time end) {
  const int64_t ns = end.time_since_epoch().count();
  itimerspec when{};
  when.it_value.tv_sec = ns / 1'000'000'000;
  when.it_value.tv_nsec = ns % 1'000'000'000;
  timerfd_settime(guard.timer.get(), TFD_TIMER_ABSTIME, &when, nullptr);
  guard.waking_timer.set(when);
}

// Takes all leases that wait, and counts them. False when the agent's end is closed.
bool take_leases(const Guard& guard, Time& lease, int& count) {
  int64_t end = 0;
  ssize_t n;
  while ((n = recv(guard.leases.get(), &end, sizeof end, MSG_DONTWAIT)) == sizeof end) {
    lease = Time(Duration(end));
    ++count;
  }
  arm(guard, lease);
  return n != 0;
}

// Waits for the agent's end or the lease's. Returns the agent's exit code, or 1. `sweep` is called
// from the second lease on: a job that is over at once need not wait for it.
int watch_over(Guard& guard, Time lease, const std::function<void()>& sweep) {
  arm(guard, lease);
  int leases = 0;
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
    if (fds[1].revents != 0 && !take_leases(guard, lease, leases)) guard.leases.reset();
    if (leases >= 2) sweep();
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

int keep(const std::string& job, uint32_t host, const std::function<int(AgentSeat)>& agent) {
  detach();
  // One that survived its launcher, and was given up, would hold it for long.
  ask_for_room(job, host);
  const Result<Fd> lock = take_agent_lock(job, host);
  Result<SocketFolder> folder = lock ? make_socket_folder() : Result<SocketFolder>(lock.error());
  if (!folder) {
    complain(folder.error().text);
    return 1;
  }
  int ends[2];
  HVD_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  Fd keeper_end(ends[0]), agent_end(ends[1]);
  const Time lease = now() + kStartLease;
  JobCgroup group = JobCgroup::make(job + "-" + std::to_string(host));
  const pid_t pid = group.fork_into();
  if (pid == 0) {
    // The locks stay open here too: they must outlive a keeper that is killed.
    keeper_end.reset();
    stand_apart();
    wake_by(agent_end.get());
    _exit(agent(AgentSeat{std::move(agent_end), std::move(*folder), std::move(group), lease}));
  }
  agent_end.reset();
  // To the end: it may be stopped while it kills.
  const WakingTimer waking_timer;
  int status = 1;
  if (pid > 0) {
    drop_input();
    wake_by(keeper_end.get());
    change_name();
    Guard guard{pid, Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))), std::move(keeper_end),
                Fd(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC)), waking_timer};
    HVD_CHECK(guard.agent_pidfd.valid() && guard.timer.valid());
    bool swept = false;
    const auto sweep = [&] {
      if (std::exchange(swept, true)) return;
      sweep_socket_folders(folder->path);
      group.sweep();
    };
    status = watch_over(guard, lease, sweep);
    // Whatever ends agents by force may have ended others with their keepers.
    if (status != 0) sweep();
  } else {
    complain(std::string("cannot start a process: ") + std::strerror(errno));
  }
  group.kill_all();
  kill_whole_tree();
  remove_socket_folder(folder->path);
  group.remove();
  return status;
}

}  // namespace hvd
