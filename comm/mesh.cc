#include "comm/mesh.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/codec.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr Duration kHelloLimit = 5s;  // for a caller to prove itself
constexpr Duration kRedial = 100ms;
constexpr size_t kMaxStrangers = 64;  // callers that have not proven themselves, beyond the ranks

struct Hello {
  uint32_t magic = 0x4456484c;  // "LHVD"
  uint32_t protocol = kProtocol, attempt = 0, from = 0, to = 0;
  std::string secret;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.magic, m.protocol, m.attempt, m.from, m.to, m.secret);
  }
};

// All hellos of a job have the same length, so that nothing after one is ever read with it.
std::string hello(const MeshIdentity& self, uint32_t to) {
  Hello words;
  words.attempt = self.attempt;
  words.from = self.rank;
  words.to = to;
  words.secret = self.secret;
  Encoder encoder;
  Hello::visit(words, encoder);
  return encoder.take();
}

// The time this takes says nothing about where the two differ.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

// Who says this hello, if it is one to this rank.
std::optional<uint32_t> hello_from(const MeshIdentity& self, std::string_view bytes) {
  Hello words;
  Decoder decoder(bytes);
  Hello::visit(words, decoder);
  const Hello expected;
  if (!decoder.finished() || words.magic != expected.magic || words.protocol != expected.protocol ||
      words.attempt != self.attempt || words.to != self.rank ||
      !same_secret(words.secret, self.secret)) {
    return std::nullopt;
  }
  return words.from;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList numeric_address(const std::string& host, const std::string& port, int extra_flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | extra_flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

void set_no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Fd stream_socket(int family) {
  return Fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

Outcome listen_at(const std::string& host, Listener& listener) {
  const std::string where = host.empty() ? "127.0.0.1" : host;
  const AddressList address = numeric_address(where, "0", AI_PASSIVE);
  if (!address) {
    return {HVD_SYSTEM_ERROR, "'" + where + "' is not a numeric address to listen at"};
  }
  listener.fd = stream_socket(address->ai_family);
  const int fd = listener.fd.get();
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (fd < 0 || bind(fd, address->ai_addr, address->ai_addrlen) != 0 ||
      listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return {HVD_SYSTEM_ERROR, errno_error("cannot listen at " + where, errno).text};
  }
  char port[NI_MAXSERV] = "";
  getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, nullptr, 0, port, sizeof port,
              NI_NUMERICSERV);
  const bool v6 = address->ai_family == AF_INET6;
  listener.address = (v6 ? "[" + where + "]:" : where + ":") + port;
  return {};
}

namespace {

// A call to a lower rank.
struct Call {
  uint32_t peer = 0;
  AddressList address{nullptr, &freeaddrinfo};
  Fd fd;
  bool connected = false;
  std::string to_send;  // what is left of the hello
  std::string heard;
  Time redial{};
  std::string trouble;  // why it did not work the last time
};

// Somebody who called this rank and has not proven who it is.
struct Caller {
  Fd fd;
  std::string heard;
  Time limit{};
};

class MeshBuilder {
 public:
  MeshBuilder(const MeshIdentity& self, const Listener& listener, AgentWire& agent,
              std::vector<Fd>& sockets)
      : self_(self),
        listener_(listener.fd.get()),
        agent_(agent),
        sockets_(sockets),
        hello_size_(hello(self, 0).size()) {
    sockets_.clear();
    sockets_.resize(self.size);
  }

  Outcome prepare(const std::vector<std::string>& addresses);
  Outcome run(Patience& patience);

 private:
  bool complete() const;
  std::string missing() const;
  Outcome step(std::optional<Time> deadline);
  void dial(Call& call);
  void retry(Call& call, const std::string& why);
  Outcome advance(Call& call);
  Outcome hear(Call& call);
  Outcome accept_all();
  bool keep(Caller& caller);
  void admit(Caller& caller, uint32_t peer);

  const MeshIdentity& self_;
  int listener_;
  AgentWire& agent_;
  std::vector<Fd>& sockets_;
  size_t hello_size_;
  std::vector<Call> calls_;
  std::vector<Caller> callers_;
};

Outcome MeshBuilder::prepare(const std::vector<std::string>& addresses) {
  for (uint32_t peer = 0; peer < self_.rank; ++peer) {
    const std::string& text = addresses[peer];
    const size_t colon = text.rfind(':');
    Call call;
    call.peer = peer;
    if (colon != std::string::npos) {
      std::string host = text.substr(0, colon);
      if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
      call.address = numeric_address(host, text.substr(colon + 1), 0);
    }
    if (!call.address) {
      return {HVD_AGENT_LOST,
              "rank " + std::to_string(peer) + " gave the address '" + text + "', which is none"};
    }
    calls_.push_back(std::move(call));
  }
  return {};
}

bool MeshBuilder::complete() const {
  for (uint32_t peer = 0; peer < self_.size; ++peer) {
    if (peer != self_.rank && !sockets_[peer]) return false;
  }
  return true;
}

std::string MeshBuilder::missing() const {
  std::vector<uint32_t> ranks;
  for (uint32_t peer = 0; peer < self_.size; ++peer) {
    if (peer != self_.rank && !sockets_[peer]) ranks.push_back(peer);
  }
  std::string text = "links to " + name_ranks(ranks);
  for (const Call& call : calls_) {
    if (call.trouble.empty() || sockets_[call.peer]) continue;
    text += " (rank " + std::to_string(call.peer) + ": " + call.trouble + ")";
  }
  return text;
}

Outcome MeshBuilder::run(Patience& patience) {
  for (Call& call : calls_) dial(call);
  while (!complete()) {
    const Outcome stepped = step(patience.deadline());
    if (!stepped) return stepped;
    const Outcome patient = patience.check([&] { return missing(); });
    if (!patient) return patient;
  }
  return {};
}

Outcome MeshBuilder::step(std::optional<Time> deadline) {
  std::vector<pollfd> polled = {{agent_.fd(), POLLIN, 0}, {listener_, POLLIN, 0}};
  for (const Call& call : calls_) {
    if (sockets_[call.peer]) {
      polled.push_back({-1, 0, 0});
    } else if (!call.fd) {
      deadline = earlier(deadline, call.redial);
      polled.push_back({-1, 0, 0});
    } else {
      const bool talking = !call.connected || !call.to_send.empty();
      polled.push_back({call.fd.get(), static_cast<short>(talking ? POLLOUT : POLLIN), 0});
    }
  }
  for (const Caller& caller : callers_) {
    deadline = earlier(deadline, caller.limit);
    polled.push_back({caller.fd.get(), POLLIN, 0});
  }
  if (poll(polled.data(), polled.size(), poll_timeout(deadline, now())) < 0 && errno != EINTR) {
    return {HVD_SYSTEM_ERROR, errno_error("cannot wait for the links", errno).text};
  }
  const Outcome told = agent_.check();
  if (!told) return told;
  for (Call& call : calls_) {
    if (sockets_[call.peer]) continue;
    const Outcome advanced = advance(call);
    if (!advanced) return advanced;
  }
  std::erase_if(callers_, [this](Caller& caller) { return !keep(caller); });
  return accept_all();
}

void MeshBuilder::dial(Call& call) {
  call.fd = stream_socket(call.address->ai_family);
  call.connected = false;
  call.to_send = hello(self_, call.peer);
  call.heard.clear();
  if (!call.fd) return retry(call, std::strerror(errno));
  set_no_delay(call.fd.get());
  const int result = connect(call.fd.get(), call.address->ai_addr, call.address->ai_addrlen);
  if (result != 0 && errno != EINPROGRESS && errno != EINTR) retry(call, std::strerror(errno));
}

void MeshBuilder::retry(Call& call, const std::string& why) {
  call.fd.reset();
  call.trouble = why;
  call.redial = now() + kRedial;
}

Outcome MeshBuilder::advance(Call& call) {
  if (!call.fd) {
    if (now() >= call.redial) dial(call);
    return {};
  }
  if (!call.connected) {
    pollfd item{call.fd.get(), POLLOUT, 0};
    if (poll(&item, 1, 0) != 1) return {};
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(call.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      retry(call, std::strerror(error));
      return {};
    }
    call.connected = true;
  }
  if (!call.to_send.empty()) {
    const ssize_t n = send(call.fd.get(), call.to_send.data(), call.to_send.size(), MSG_NOSIGNAL);
    if (n > 0) call.to_send.erase(0, static_cast<size_t>(n));
  }
  return hear(call);
}

Outcome MeshBuilder::hear(Call& call) {
  char bytes[1024];
  const size_t wanted = std::min(sizeof bytes, hello_size_ - call.heard.size());
  const ssize_t n = recv(call.fd.get(), bytes, wanted, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  const std::string peer = "rank " + std::to_string(call.peer);
  if (n <= 0) {
    // The other side refuses a caller of another job or attempt by closing; so does one that ends.
    retry(call, "it closed the connection before it had answered");
    return {};
  }
  call.heard.append(bytes, static_cast<size_t>(n));
  if (call.heard.size() < hello_size_) return {};
  if (hello_from(self_, call.heard) != call.peer) {
    retry(call, "somebody else answers at its address");
    return {};
  }
  sockets_[call.peer] = std::move(call.fd);
  return {};
}

Outcome MeshBuilder::accept_all() {
  while (true) {
    Fd fd(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EAGAIN) return {};
      if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
      return {HVD_SYSTEM_ERROR, errno_error("cannot accept a link", errno).text};
    }
    // The oldest of too many silent callers goes, so that they cannot keep a rank out.
    if (callers_.size() >= kMaxStrangers + self_.size) callers_.erase(callers_.begin());
    callers_.push_back({std::move(fd), "", now() + kHelloLimit});
  }
}

// False if the caller is to be forgotten: it was admitted, or is none of ours.
bool MeshBuilder::keep(Caller& caller) {
  char bytes[1024];
  const size_t wanted = std::min(sizeof bytes, hello_size_ - caller.heard.size());
  const ssize_t n = recv(caller.fd.get(), bytes, wanted, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return now() < caller.limit;
  if (n <= 0) return false;
  caller.heard.append(bytes, static_cast<size_t>(n));
  if (caller.heard.size() < hello_size_) return now() < caller.limit;
  const auto from = hello_from(self_, caller.heard);
  if (from && *from > self_.rank && *from < self_.size) admit(caller, *from);
  return false;
}

void MeshBuilder::admit(Caller& caller, uint32_t peer) {
  const std::string answer = hello(self_, peer);
  set_no_delay(caller.fd.get());
  const ssize_t n = send(caller.fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  // Nothing was sent on this socket before, so all of it fits or the caller has gone.
  if (n == static_cast<ssize_t>(answer.size())) sockets_[peer] = std::move(caller.fd);
}

}  // namespace

Outcome connect_mesh(const MeshIdentity& self, const Listener& listener,
                     const std::vector<std::string>& addresses, AgentWire& agent,
                     Patience& patience, std::vector<Fd>& sockets) {
  if (addresses.size() != self.size) {
    return {HVD_AGENT_LOST, "the agent gave " + std::to_string(addresses.size()) +
                                " addresses for " + std::to_string(self.size) + " ranks"};
  }
  set_nonblocking(listener.fd.get());
  MeshBuilder builder(self, listener, agent, sockets);
  const Outcome prepared = builder.prepare(addresses);
  if (!prepared) return prepared;
  return builder.run(patience);
}

}  // namespace hvd
