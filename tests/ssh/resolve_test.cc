// Names: a resolver that hangs, and a host with several addresses. The system's files are replaced
// in a mount namespace that one thread, and the dialling threads it starts, have to themselves.
#include "launcher/resolve.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <thread>

#include "tests/ssh/ssh_server.h"

using namespace hvd;
using namespace hvd::testing;
using namespace std::chrono_literals;

namespace {

// What became of dialling `target`.
struct Outcome {
  bool namespace_made = false;
  ChannelState state = ChannelState::opening;
  std::string reason, peer;
  Duration took{}, longest_wait{};
};

// Dials where the system's file `replaced` has the content of `by`.
Outcome dial_with(const std::string& replaced, const std::string& by, const SshTarget& target) {
  Outcome outcome;
  std::thread([&] {
    outcome.namespace_made = unshare(CLONE_NEWNS) == 0 &&
                             mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                             mount(by.c_str(), replaced.c_str(), nullptr, MS_BIND, nullptr) == 0;
    if (!outcome.namespace_made) return;
    const Time start = now();
    Driver driver(target);
    driver.until_open();
    outcome.took = now() - start;
    outcome.state = driver.channel().state();
    outcome.reason = driver.channel().reason();
    outcome.peer = driver.channel().peer_address();
    outcome.longest_wait = driver.longest_wait;
  }).join();
  return outcome;
}

Address address_of(const char* host, int port) {
  const auto found = resolve(host, static_cast<uint16_t>(port));
  return std::get<std::vector<Address>>(found).at(0);
}

}  // namespace

TEST_CASE("c7: a name that does not exist is asked for again, for a sixth of the time") {
  const Fd knows(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(53);
  at.sin_addr.s_addr = htonl(0x7f00000a);
  const bool bound = bind(knows.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
  std::thread server([&knows] {
    char query[512];
    sockaddr_in from{};
    socklen_t size = sizeof from;
    while (true) {
      const ssize_t n =
          recvfrom(knows.get(), query, sizeof query, 0, reinterpret_cast<sockaddr*>(&from), &size);
      if (n < 12) return;
      query[2] = static_cast<char>(0x81);  // an answer
      query[3] = static_cast<char>(0x83);  // of a server that asks others: no such name
      sendto(knows.get(), query, static_cast<size_t>(n), 0,
             reinterpret_cast<const sockaddr*>(&from), size);
    }
  });
  const SshServer files;
  SshTarget target = files.target("true");
  target.address = "nosuch.example";
  target.deadline = now() + 9s;
  write_file(files.path("resolv.conf"), "nameserver 127.0.0.10\n");
  const Outcome outcome = dial_with("/etc/resolv.conf", files.path("resolv.conf"), target);
  shutdown(knows.get(), SHUT_RDWR);
  server.join();
  if (!bound || !outcome.namespace_made) {
    not_run("ssh: a name that does not exist: mounting and port 53 are not allowed");
    return;
  }
  CHECK(outcome.state == ChannelState::closed);
  INFO(outcome.reason);
  CHECK(outcome.reason.starts_with(
      "cannot reach h1: the name nosuch.example cannot be resolved: Name or service not known"));
  CHECK(outcome.reason.find("(tried again for ") != std::string::npos);
  CHECK(outcome.took >= 1s);
  CHECK(outcome.took < 7s);
}

TEST_CASE("a resolver that never answers is given up at the deadline") {
  const Fd silent(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(53);
  inet_pton(AF_INET, "127.0.0.9", &at.sin_addr);
  const bool bound = bind(silent.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
  const SshServer server;
  SshTarget target = server.target("true");
  target.address = "slow.example";
  target.deadline = now() + 1500ms;
  write_file(server.path("resolv.conf"), "nameserver 127.0.0.9\noptions timeout:30\n");
  const Outcome outcome = dial_with("/etc/resolv.conf", server.path("resolv.conf"), target);
  if (!bound || !outcome.namespace_made) {
    not_run("ssh: a resolver that hangs: mounting and port 53 are not allowed");
    return;
  }
  CHECK(outcome.reason.starts_with(
      "cannot reach h1: the name slow.example was not resolved within "));
  CHECK(outcome.took < 2500ms);
  CHECK(outcome.longest_wait < 50ms);
}

TEST_CASE("a host whose first address refuses is reached at the second") {
  const SshServer server;
  SshTarget target = server.target("exec cat");
  target.address = "two-addresses";
  write_file(server.path("hosts"), "127.0.0.3 two-addresses\n127.0.0.2 two-addresses\n");
  write_file(target.known_hosts, "[two-addresses]:" + std::to_string(server.port()) + " " +
                                     file_text(server.path("host_ed25519.pub")));
  const Outcome outcome = dial_with("/etc/hosts", server.path("hosts"), target);
  if (!outcome.namespace_made) {
    not_run("ssh: two addresses: mounting is not allowed");
    return;
  }
  INFO(outcome.reason);
  CHECK(outcome.state == ChannelState::open);
  CHECK(outcome.peer == "127.0.0.2");
}

TEST_CASE("the second address is tried when the first refuses") {
  const SshServer server;
  const auto never = make_pipe();
  const std::vector<Address> addresses = {address_of("127.0.0.3", server.port()),
                                          address_of("127.0.0.2", server.port())};
  const auto result = connect_first(addresses, now() + 5s, never->read.get());
  REQUIRE(std::holds_alternative<Fd>(result));
  CHECK(peer_host(std::get<Fd>(result).get()) == "127.0.0.2");
}

TEST_CASE("when every address refuses, each is named") {
  const int port = free_port("127.0.0.2");
  const auto never = make_pipe();
  const std::vector<Address> addresses = {address_of("127.0.0.3", port),
                                          address_of("127.0.0.2", port)};
  const auto result = connect_first(addresses, now() + 5s, never->read.get());
  const auto& failure = std::get<ConnectFailure>(result);
  const std::string end = " port " + std::to_string(port) + ": Connection refused";
  CHECK(failure.text == "127.0.0.3" + end + "; 127.0.0.2" + end);
}

TEST_CASE("an address that says nothing ends with the deadline or the cancel") {
  // A listener whose queue is full drops what more arrives.
  const Fd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Address at = address_of("127.0.0.2", free_port("127.0.0.2"));
  REQUIRE(bind(full.get(), reinterpret_cast<sockaddr*>(&at.storage), at.length) == 0);
  REQUIRE(listen(full.get(), 0) == 0);
  std::vector<Fd> queued;
  for (int i = 0; i < 4; ++i) {
    queued.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connect(queued.back().get(), reinterpret_cast<sockaddr*>(&at.storage), at.length);
  }
  auto cancel = make_pipe();
  SUBCASE("the deadline") {}
  SUBCASE("the cancel") {
    cancel->write.reset();
  }
  const Time start = now();
  const auto result = connect_first({at}, start + 300ms, cancel->read.get());
  REQUIRE(std::holds_alternative<ConnectFailure>(result));
  CHECK(std::get<ConnectFailure>(result).given_up);
  CHECK(now() - start < 2s);
}

TEST_CASE("addresses are printed without port and scope") {
  CHECK(numeric_host(address_of("10.0.0.7", 22)) == "10.0.0.7");
  CHECK(endpoint_text(address_of("10.0.0.7", 2222)) == "10.0.0.7 port 2222");
  CHECK(numeric_host(address_of("fd00::2", 22)) == "fd00::2");
  CHECK(numeric_host(address_of("fe80::1%lo", 22)) == "fe80::1");
  CHECK(peer_host(-1).empty());
}
