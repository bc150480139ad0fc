#include "launcher/control_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "base/time.h"

namespace hvd {

namespace {

constexpr std::string_view kName = "hvdlaunch-control-";
constexpr std::string_view kGood = "ok\n";
constexpr size_t kLongestQuestion = 4096, kLongestAnswer = 256u << 20;
constexpr size_t kMostCallers = 16;
constexpr uint64_t kListener = 0;

struct Address {
  sockaddr_un un{};
  socklen_t length = 0;
};

std::optional<Address> address_of(const std::string& job) {
  const std::string name = std::string(kName) + job;
  Address address;
  address.un.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.un.sun_path) return std::nullopt;
  std::memcpy(address.un.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

bool is_ours(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace

ControlSocket::ControlSocket(const std::string& job) {
  const auto address = address_of(job);
  if (!address) return;
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address->un), address->length) != 0 ||
      listen(fd.get(), static_cast<int>(kMostCallers)) != 0) {
    return;
  }
  listener_ = std::move(fd);
  poller_.watch(listener_.get(), kListener, {true, false});
}

std::vector<ControlSocket::Question> ControlSocket::serve() {
  std::vector<Question> questions;
  for (const Ready& ready : poller_.wait(Time{})) {
    if (ready.id == kListener) {
      accept_waiting();
      continue;
    }
    const auto found = callers_.find(ready.id);
    if (found == callers_.end()) continue;
    Caller& caller = found->second;
    const bool stays = (!ready.read || read(ready.id, caller, questions)) && flush(caller);
    if (stays) continue;
    poller_.forget(caller.fd.get());
    callers_.erase(found);
  }
  return questions;
}

void ControlSocket::accept_waiting() {
  while (true) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    if (callers_.size() >= kMostCallers || !is_ours(fd.get())) continue;
    const uint64_t number = next_caller_++;
    poller_.watch(fd.get(), number, {true, false});
    callers_[number].fd = std::move(fd);
  }
}

bool ControlSocket::read(uint64_t number, Caller& caller, std::vector<Question>& questions) {
  char block[1024];
  const ssize_t n = recv(caller.fd.get(), block, sizeof block, 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  if (caller.asked) return true;
  caller.said.append(block, static_cast<size_t>(n));
  const size_t end = caller.said.find('\n');
  if (end == std::string::npos) return caller.said.size() <= kLongestQuestion;
  caller.asked = true;
  questions.push_back({number, caller.said.substr(0, end)});
  return true;
}

bool ControlSocket::flush(Caller& caller) {
  while (!caller.unsent.empty()) {
    const ssize_t n =
        send(caller.fd.get(), caller.unsent.data(), caller.unsent.size(), MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    caller.unsent.erase(0, static_cast<size_t>(n));
  }
  return !caller.answered;
}

void ControlSocket::answer(uint64_t caller, const std::string& text) {
  reply(caller, std::string(kGood) + text);
}

void ControlSocket::refuse(uint64_t caller, const std::string& why) {
  reply(caller, why + "\n");
}

void ControlSocket::reply(uint64_t caller, std::string text) {
  const auto found = callers_.find(caller);
  if (found == callers_.end()) return;
  found->second.unsent = std::move(text);
  found->second.answered = true;
  poller_.watch(found->second.fd.get(), caller, {true, true});
}

std::vector<std::string> running_jobs() {
  const Result<std::string> table = read_file("/proc/net/unix", 64u << 20);
  std::vector<std::string> jobs;
  const std::string mark = "@" + std::string(kName);
  for (size_t at = table ? table->find(mark) : std::string::npos; at != std::string::npos;
       at = table->find(mark, at + 1)) {
    const size_t begin = at + mark.size();
    jobs.push_back(table->substr(begin, table->find('\n', begin) - begin));
  }
  std::sort(jobs.begin(), jobs.end());
  jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
  return jobs;
}

Result<std::string> ask_job(const std::string& job, const std::string& words, int limit_s) {
  const auto address = address_of(job);
  const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!address || !fd ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address->un), address->length) != 0) {
    return Error{"there is no job " + job + " whose launcher runs on this machine"};
  }
  if (!is_ours(fd.get())) return Error{"job " + job + " is another user's"};
  const std::string line = words + "\n";
  if (send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
    return errno_error("cannot ask job " + job, errno);
  }
  const Time until = now() + std::chrono::seconds(limit_s);
  std::string text;
  char block[65536];
  while (text.size() < kLongestAnswer) {
    pollfd ready{fd.get(), POLLIN, 0};
    if (poll(&ready, 1, poll_timeout(until, now())) == 0) {
      return Error{"job " + job + " did not answer within " + std::to_string(limit_s) + " s"};
    }
    const ssize_t n = recv(fd.get(), block, sizeof block, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(block, static_cast<size_t>(n));
  }
  if (text.starts_with(kGood)) return text.substr(kGood.size());
  if (text.empty()) return Error{"job " + job + " ended before it answered"};
  return Error{text.substr(0, text.find('\n'))};
}

}  // namespace hvd
