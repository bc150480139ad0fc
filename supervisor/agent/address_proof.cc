#include "supervisor/agent/address_proof.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "base/codec.h"
#include "supervisor/agent/own_addresses.h"
#include "supervisor/agent/reserved_port.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr Duration kCallerLimit = 5s;
// The oldest of more goes, so that strangers cannot keep a host out.
constexpr size_t kMostCallers = 512;
constexpr int kCallersAtOnce = 64;

// Reads into `heard` until it has `size` bytes. Ends with true when it has them or none will come.
bool read_up_to(int fd, std::string& heard, size_t size, bool& ended) {
  char bytes[256];
  ended = false;
  while (heard.size() < size) {
    const ssize_t n = recv(fd, bytes, std::min(sizeof bytes, size - heard.size()), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    ended = n <= 0;
    if (ended) return true;
    heard.append(bytes, static_cast<size_t>(n));
  }
  return true;
}

DialEnd end_of(int error) {
  if (error == ECONNREFUSED) return DialEnd::refused;
  return error == ETIMEDOUT ? DialEnd::no_answer : DialEnd::failed;
}

// Starts a connection; on failure an invalid descriptor with errno.
Fd connect_to(const std::string& address, uint32_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  errno = EADDRNOTAVAIL;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return Fd();
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  Fd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  // Closing leaves nothing behind in the kernel.
  const linger none{1, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS) return fd;
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

}  // namespace

std::string AddressProof::words(bool answer, uint32_t from, uint32_t to) const {
  const size_t half = nonce_.size() / 2;
  Encoder out;
  out(answer ? nonce_.substr(half) : nonce_.substr(0, half), from, to);
  return out.take();
}

ProofOpened AddressProof::open(const OpenProof& message) {
  ProofOpened answer;
  answer.request = message.request;
  nonce_ = message.nonce;
  if (!listener_) {
    Result<ReservedPort> reserved = ReservedPort::take();
    if (!reserved) {
      answer.error = reserved.error().text;
      return answer;
    }
    port_ = reserved->number();
    Fd socket = reserved->take_socket();
    set_nonblocking(socket.get());
    if (listen(socket.get(), SOMAXCONN) != 0) {
      answer.error = errno_error("cannot listen for other hosts", errno).text;
      return answer;
    }
    listener_.emplace(*poller_, std::move(socket), poll_name(Source::proof_listener));
    listener_->watch({true, false});
  }
  answer.port = port_;
  answer.addresses = own_addresses();
  return answer;
}

void AddressProof::close() {
  listener_.reset();
  callers_.clear();
  calls_.clear();
  limit_.reset();
  results_.results.clear();
}

// ---- those who call ----

void AddressProof::accept_waiting(Time now) {
  // Strangers that keep calling do not keep the loop: it comes back here.
  for (int i = 0; listener_ && i < kCallersAtOnce; ++i) {
    Fd fd(accept4(listener_->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!fd && errno == EMFILE && !callers_.empty()) {
      callers_.erase(callers_.begin());
      continue;
    }
    if (!fd) return;
    const uint64_t serial = ++last_serial_;
    Caller caller{
        {*poller_, std::move(fd), poll_name(Source::proof_caller, serial)}, now + kCallerLimit, {}};
    if (hear(caller)) continue;
    if (callers_.size() >= kMostCallers) callers_.erase(callers_.begin());
    callers_.emplace(serial, std::move(caller)).first->second.socket.watch({true, false});
  }
}

void AddressProof::caller_ready(uint64_t serial) {
  const auto found = callers_.find(serial);
  if (found != callers_.end() && hear(found->second)) callers_.erase(found);
}

bool AddressProof::hear(Caller& caller) {
  bool ended = false;
  const size_t size = words(false, 0, host_).size();
  if (!read_up_to(caller.socket.get(), caller.heard, size, ended)) return false;
  if (ended) return true;
  Decoder in(caller.heard);
  std::string half;
  uint32_t from = 0;
  uint32_t to = 0;
  in(half, from, to);
  if (!in.finished() || from == host_ || caller.heard != words(false, from, host_)) return true;
  const std::string answer = words(true, host_, from);
  // Nothing was sent on this socket before: all of it fits, or the caller has gone.
  static_cast<void>(send(caller.socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL));
  return true;
}

// ---- those who are called ----

void AddressProof::dial(const DialPeers& message, Time now) {
  calls_.clear();
  nonce_ = message.nonce;
  results_.round = message.round;
  results_.results.clear();
  limit_ = now + Duration(static_cast<int64_t>(message.limit_ns));
  for (const DialTarget& target : message.targets) {
    for (uint32_t address = 0; address < target.addresses.size(); ++address) {
      start_call(target, address);
    }
  }
}

void AddressProof::start_call(const DialTarget& target, uint32_t address) {
  Fd fd = connect_to(target.addresses[address], target.port);
  if (!fd) return tell(target.host, address, end_of(errno), errno);
  const uint64_t serial = ++last_serial_;
  Call call{{*poller_, std::move(fd), poll_name(Source::proof_call, serial)},
            target.host,
            address,
            false,
            {}};
  calls_.emplace(serial, std::move(call)).first->second.socket.watch({false, true});
}

// False if the connection did not come to be; that has been told.
bool AddressProof::greet(Call& call) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(call.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  const std::string hello = words(false, host_, call.host);
  if (error == 0 && send(call.socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL) < 0) {
    error = errno;
  }
  if (error != 0) {
    tell(call.host, call.address, end_of(error), error);
    return false;
  }
  call.connected = true;
  call.socket.watch({true, false});
  return true;
}

void AddressProof::call_ready(uint64_t serial) {
  const auto found = calls_.find(serial);
  if (found == calls_.end()) return;
  Call& call = found->second;
  if (!call.connected) {
    if (!greet(call)) calls_.erase(found);
    return;
  }
  bool ended = false;
  const std::string expected = words(true, call.host, host_);
  if (!read_up_to(call.socket.get(), call.heard, expected.size(), ended)) return;
  const bool proven = !ended && call.heard == expected;
  tell(call.host, call.address, proven ? DialEnd::reached : DialEnd::stranger);
  calls_.erase(found);
}

void AddressProof::tell(uint32_t host, uint32_t address, DialEnd end, int error) {
  results_.results.push_back({host, address, end, error});
}

void AddressProof::expire(Time now) {
  std::erase_if(callers_, [now](const auto& caller) { return caller.second.limit <= now; });
  if (!limit_ || *limit_ > now) return;
  limit_.reset();
  for (const auto& [serial, call] : calls_) tell(call.host, call.address, DialEnd::no_answer);
  calls_.clear();
}

std::optional<Time> AddressProof::deadline() const {
  std::optional<Time> first;
  if (!calls_.empty()) first = limit_;
  // Callers are kept by serial: the first has waited longest.
  if (!callers_.empty()) first = earlier(first, callers_.begin()->second.limit);
  return first;
}

Dialled AddressProof::take_results() {
  Dialled taken{results_.round, {}};
  taken.results.swap(results_.results);
  return taken;
}

}  // namespace hvd
