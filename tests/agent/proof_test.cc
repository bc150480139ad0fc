// Agents that prove to each other which addresses reach them, and strangers who try to take part.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <list>
#include <thread>

#include "supervisor/agent/own_addresses.h"
#include "tests/agent/agent_process.h"
#include "tests/loopback.h"

using namespace hvd;
using namespace hvd::test;

namespace {

const std::string kNonce = std::string(32, 'c') + std::string(32, 'a');
constexpr uint64_t kLimit = 2'000'000'000;

ProofOpened open(AgentProcess& agent) {
  agent.send(OpenProof{7, kNonce});
  const auto opened = agent.expect<ProofOpened>();
  CHECK(opened.request == 7);
  CHECK(opened.error.empty());
  CHECK(opened.port > 0);
  return opened;
}

// The end of each dialled address, in the order of the list.
std::vector<DialEnd> dial(AgentProcess& agent, uint32_t host, uint32_t port,
                          std::vector<std::string> addresses, uint32_t round = 1) {
  std::vector<DialEnd> ends(addresses.size(), DialEnd::pending);
  size_t missing = addresses.size();
  agent.send(DialPeers{round, kNonce, kLimit, {{host, port, std::move(addresses)}}});
  while (missing > 0) {
    const auto told = agent.expect<Dialled>([&](const Dialled& m) { return m.round == round; });
    for (const DialReport& one : told.results) {
      CHECK(one.host == host);
      REQUIRE(one.address < ends.size());
      CHECK(ends[one.address] == DialEnd::pending);
      ends[one.address] = one.end;
      --missing;
    }
  }
  return ends;
}

// A connection to a listener on this machine; invalid if there is none.
Fd call(uint32_t port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Fd();
  return fd;
}

// All that the other side says until it closes.
std::string hear_all(const Fd& fd) {
  std::string heard;
  char bytes[256];
  ssize_t n = 0;
  while ((n = recv(fd.get(), bytes, sizeof bytes, 0)) > 0)
    heard.append(bytes, static_cast<size_t>(n));
  return heard;
}

// Listens and is no agent of the job. It says nothing, or repeats what its one caller says.
class Stranger {
 public:
  explicit Stranger(bool echoes) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    REQUIRE(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(listen(fd_.get(), 8) == 0);
    getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port = ntohs(address.sin_port);
    if (echoes) echo_ = std::thread([this] { echo_once(); });
  }
  ~Stranger() {
    if (echo_.joinable()) echo_.join();
  }
  uint32_t port = 0;

 private:
  void echo_once() const {
    const Fd fd(accept(fd_.get(), nullptr, nullptr));
    char bytes[256];
    const ssize_t n = recv(fd.get(), bytes, sizeof bytes, 0);
    if (n > 0) static_cast<void>(::send(fd.get(), bytes, static_cast<size_t>(n), MSG_NOSIGNAL));
  }
  Fd fd_;
  std::thread echo_;
};

}  // namespace

TEST_CASE("an address is proven by the agent of the host that was meant, and by no other") {
  AgentProcess one({.host = 1});
  AgentProcess two({.host = 2});
  one.greet();
  two.greet();
  const ProofOpened first = open(one);
  const ProofOpened second = open(two);
  CHECK(open(two).port == second.port);  // once
  CHECK(dial(one, 2, second.port, {"127.0.0.1", "::1", "127.0.0.2"}) ==
        std::vector<DialEnd>(3, DialEnd::reached));
  CHECK(dial(two, 1, first.port, {"127.0.0.1"}) == std::vector{DialEnd::reached});
  // One's own listener, and that of a third host, say nothing about host 2.
  CHECK(dial(one, 2, first.port, {"127.0.0.1"}) == std::vector{DialEnd::stranger});
  CHECK(dial(one, 3, second.port, {"127.0.0.1"}) == std::vector{DialEnd::stranger});
  two.send(CloseProof{});
  two.send(OpenProof{8, std::string(64, 'x')});
  CHECK(dial(one, 2, two.expect<ProofOpened>().port, {"127.0.0.1"}) ==
        std::vector{DialEnd::stranger});
}

TEST_CASE("other ends are told apart, and none is waited for longer than the limit") {
  AgentProcess agent;
  agent.greet();
  const Stranger echo(true);
  const Stranger mute(false);
  const Time started = now();
  CHECK(dial(agent, 2, echo.port, {"127.0.0.1"}) == std::vector{DialEnd::stranger});
  CHECK(dial(agent, 2, 1, {"127.0.0.1", "255.255.255.255", "nonsense"}) ==
        std::vector{DialEnd::refused, DialEnd::failed, DialEnd::failed});
  CHECK(now() - started < 2s);
  CHECK(dial(agent, 2, mute.port, {"127.0.0.1"}) == std::vector{DialEnd::no_answer});
  CHECK(now() - started < 10s);
}

TEST_CASE("a stranger on the listener is dropped, learns nothing and delays nothing") {
  AgentProcess one({.host = 1});
  AgentProcess two({.host = 2});
  one.greet();
  two.greet();
  const uint32_t port = open(two).port;
  std::list<Fd> silent;
  for (int i = 0; i < 700; ++i) {
    silent.push_back(call(port));
    REQUIRE(silent.back().valid());
  }
  CHECK(dial(one, 2, port, {"127.0.0.1"}) == std::vector{DialEnd::reached});
  const std::string half = std::string("\x20\0\0\0", 4) + std::string(32, 'c');
  const std::string ours("\1\0\0\0\2\0\0\0", 8);
  for (const std::string& words :
       {std::string(4096, 'x'), std::string("GET / HTTP/1.0\r\n\r\n                             "),
        std::string("\x20\0\0\0", 4) + std::string(32, 'a') + ours,  // the wrong half
        half + std::string("\1\0\0\0\3\0\0\0", 8),                   // another host
        half + std::string("\2\0\0\0\2\0\0\0", 8),                   // itself
        std::string("\xff\xff\xff\xff", 4) + std::string(32, 'c') + ours}) {
    const Fd fd = call(port);
    REQUIRE(fd.valid());
    static_cast<void>(::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL));
    CHECK(hear_all(fd).empty());
  }
  // Whoever knows the first half is told the second, in pieces too.
  const Fd knowing = call(port);
  for (const char byte : half + ours) {
    static_cast<void>(::send(knowing.get(), &byte, 1, MSG_NOSIGNAL));
  }
  CHECK(hear_all(knowing).find(std::string(32, 'a')) != std::string::npos);
  CHECK(dial(one, 2, port, {"127.0.0.1"}, 2) == std::vector{DialEnd::reached});
  // The silent ones are let go within seconds.
  CHECK(wait_until([&] {
    char byte;
    two.pump_until([] { return false; }, 10ms);
    return recv(silent.back().get(), &byte, 1, MSG_DONTWAIT) == 0;
  }));
}

TEST_CASE("the listener is there only while addresses are proven") {
  AgentProcess agent({.host = 1});
  agent.greet();
  const uint32_t port = open(agent).port;
  REQUIRE(call(port).valid());
  agent.send(CloseProof{});
  CHECK(wait_until([&] { return !call(port).valid(); }));
  // Dials under way are given up without a word.
  const Stranger mute(false);
  agent.send(DialPeers{5, kNonce, kLimit, {{2, mute.port, {"127.0.0.1"}}}});
  agent.send(CloseProof{});
  agent.pump_until([] { return false; }, 2500ms);
  CHECK(agent.count<Dialled>() == 0);
  agent.send(Goodbye{});
  CHECK(agent.wait_end() == 0);
}

TEST_CASE("what a host tells are addresses that others can dial, with their cards") {
  AgentProcess agent;
  agent.greet();
  const ProofOpened opened = open(agent);
  CHECK(opened.addresses == own_addresses());
  for (const HostAddress& one : opened.addresses) {
    CHECK(!one.address.starts_with("127."));
    CHECK(!one.address.starts_with("fe80:"));
    CHECK(one.address != "::1");
    CHECK(one.prefix > 0);
    const std::vector<std::string> cards = card_names();
    CHECK(std::find(cards.begin(), cards.end(), one.card.substr(0, one.card.find(':'))) !=
          cards.end());
  }
}
