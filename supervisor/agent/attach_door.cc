#include "supervisor/agent/attach_door.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/build_id.h"
#include "supervisor/agent/job_name.h"
#include "supervisor/agent/unix_socket.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr char kAttach = 'a', kMakeRoom = 'r', kDismiss = 'd';
constexpr size_t kMostCallers = 8;
// For a caller to say what it wants. Its launcher may be far away.
constexpr Duration kHelloLimit = 60s;

// The two descriptors that came along, or closes all that did.
void take_two(msghdr& header, Fd& in, Fd& out) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof number);
      Fd fd(number);
      (in ? out : in) = std::move(fd);
    }
  }
}

Fd knock(const std::string& job, uint32_t host) {
  const AbstractName name = door_name(job, host);
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), name.get(), name.length) != 0 || !is_same_user(fd.get())) {
    return Fd();
  }
  return fd;
}

bool hand_over_wire(int door) {
  char what = kAttach;
  iovec part{&what, 1};
  const int ends[2] = {STDIN_FILENO, STDOUT_FILENO};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof ends)] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof ends);
  std::memcpy(CMSG_DATA(rights), ends, sizeof ends);
  return sendmsg(door, &header, MSG_NOSIGNAL) == 1;
}

void say_absent(const std::string& job) {
  AgentHello hello;
  hello.absent = true;
  hello.refusal = "no agent of job " + job + " runs there";
  static_cast<void>(write_all(STDOUT_FILENO, to_frame(FromAgent(hello))));
}

}  // namespace

void AttachCaller::dismiss() {
  if (socket) static_cast<void>(send(socket.get(), &kDismiss, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
  socket.reset();
  in.reset();
  out.reset();
}

// A reader that takes nothing is none that waits for this.
void AttachCaller::refuse(const std::string& why) {
  AgentHello answer;
  answer.refusal = why;
  const std::string bytes = to_frame(FromAgent(answer));
  set_nonblocking(out.get());
  static_cast<void>(write(out.get(), bytes.data(), bytes.size()));
  dismiss();
}

Result<AttachDoor> AttachDoor::open(Poller& poller, const std::string& job, uint32_t host) {
  const AbstractName name = door_name(job, host);
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || bind(fd.get(), name.get(), name.length) != 0 ||
      listen(fd.get(), static_cast<int>(kMostCallers)) != 0) {
    return errno_error("cannot be attached to", errno);
  }
  return AttachDoor(poller, WatchedFd(poller, std::move(fd), poll_name(Source::door)));
}

void AttachDoor::accept_waiting(Time now) {
  while (true) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    if (waiting_.size() >= kMostCallers || !is_same_user(fd.get())) continue;
    Waiting& waiting = waiting_[next_serial_++];
    waiting.caller.socket = std::move(fd);
    waiting.until = now + kHelloLimit;
  }
}

void AttachDoor::watch() {
  listener_.watch({true, false});
  for (auto& [serial, waiting] : waiting_) {
    const int fd = waiting.named ? waiting.caller.in.get() : waiting.caller.socket.get();
    poller_->watch(fd, poll_name(Source::door_caller, serial), {true, false});
  }
}

void AttachDoor::drop(uint64_t serial) {
  const auto found = waiting_.find(serial);
  if (found == waiting_.end()) return;
  for (Fd* fd : {&found->second.caller.socket, &found->second.caller.in}) {
    if (*fd) poller_->forget(fd->get());
  }
  waiting_.erase(found);
}

void AttachDoor::serve(uint64_t serial) {
  const auto found = waiting_.find(serial);
  if (found == waiting_.end()) return;
  Waiting& waiting = found->second;
  if (!waiting.named) {
    if (!take_descriptors(waiting)) drop(serial);
    return;
  }
  bool whole = false;
  const bool good = take_hello(waiting, whole);
  if (good && !whole) return;
  AttachCaller caller = std::move(waiting.caller);
  poller_->forget(caller.in.get());
  waiting_.erase(found);
  if (whole) {
    ready_.push_back(std::move(caller));
  } else {
    caller.dismiss();
  }
}

bool AttachDoor::take_descriptors(Waiting& waiting) {
  char what = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  iovec part{&what, 1};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  AttachCaller& caller = waiting.caller;
  const ssize_t n = recvmsg(caller.socket.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n == 1) take_two(header, caller.in, caller.out);
  asked_to_make_room_ |= n == 1 && what == kMakeRoom;
  if (n != 1 || what != kAttach || !caller.in || !caller.out) return false;
  poller_->forget(caller.socket.get());
  set_nonblocking(caller.in.get());
  waiting.named = true;
  return true;
}

// False if nothing better comes.
bool AttachDoor::take_hello(Waiting& waiting, bool& whole) {
  char block[4096];
  const ssize_t n = read(waiting.caller.in.get(), block, sizeof block);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  waiting.caller.reader.feed({block, static_cast<size_t>(n)});
  const auto body = waiting.caller.reader.next();
  if (!body) return !waiting.caller.reader.broken();
  const std::optional<ToAgent> message = parse_to_agent(*body);
  const auto* hello = message ? std::get_if<LauncherHello>(&*message) : nullptr;
  if (hello == nullptr) {
    waiting.caller.refuse("its agent is of another version of hvdlaunch");
    return false;
  }
  waiting.caller.hello = *hello;
  whole = true;
  return true;
}

void AttachDoor::expire(Time now) {
  std::vector<uint64_t> late;
  for (const auto& [serial, waiting] : waiting_) {
    if (waiting.until <= now) late.push_back(serial);
  }
  for (const uint64_t serial : late) drop(serial);
}

std::optional<Time> AttachDoor::deadline() const {
  std::optional<Time> first;
  for (const auto& [serial, waiting] : waiting_) first = earlier(first, waiting.until);
  return first;
}

std::vector<AttachCaller> AttachDoor::take_callers() {
  return std::exchange(ready_, {});
}

int attach_main(const std::string& job, uint32_t host) {
  const std::string greeting = std::string(kAgentGreeting) + own_build_id() + "\n";
  if (!write_all(STDOUT_FILENO, greeting)) return 1;
  const Fd door = knock(job, host);
  char what = 0;
  if (door && hand_over_wire(door.get())) {
    // The descriptors are the agent's to read and write; these copies hold the conversation open.
    ssize_t n;
    while ((n = recv(door.get(), &what, 1, 0)) < 0 && errno == EINTR) {
    }
    if (n == 1 && what == kDismiss) return 0;
  }
  // It ended, or was never there: said when nothing of the job is left.
  const Result<Fd> lock = take_agent_lock(job, host);
  if (!lock) return 1;
  if (!door) say_absent(job);
  return 1;
}

void ask_for_room(const std::string& job, uint32_t host) {
  if (const Fd door = knock(job, host)) {
    static_cast<void>(send(door.get(), &kMakeRoom, 1, MSG_NOSIGNAL));
  }
}

}  // namespace hvd
