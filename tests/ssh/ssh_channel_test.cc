// A channel once its command runs: bytes both ways, how it ends, and a peer that stops.
#include "launcher/ssh_channel.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <random>

#include "tests/ssh/ssh_server.h"

using namespace hvd;
using namespace hvd::testing;
using namespace std::chrono_literals;

namespace {

constexpr Duration kNoWait = 50ms;

std::string random_bytes(size_t size) {
  std::mt19937 random(7);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

void check_ended(Driver& driver, const std::string& how) {
  REQUIRE(driver.until_closed());
  CHECK(driver.channel().end() == ChannelEnd::ended);
  CHECK(driver.channel().reason() == "the remote process on h1 ended with " + how);
  CHECK(driver.channel().fd() == -1);
  CHECK(driver.longest_wait < kNoWait);
}

}  // namespace

TEST_CASE("8 MiB pass unchanged in both directions") {
  const SshServer server;
  Driver driver(server.target("exec cat"));
  const std::string bytes = random_bytes(8u << 20);
  // Half is queued before the channel is open.
  driver.channel().send(std::string_view(bytes).substr(0, 4u << 20));
  REQUIRE(driver.until_open());
  CHECK(driver.channel().peer_address() == "127.0.0.2");
  CHECK(driver.channel().own_address().starts_with("127."));
  driver.channel().send(std::string_view(bytes).substr(4u << 20));
  CHECK(driver.run(30s, [&] { return driver.received.size() >= bytes.size(); }));
  CHECK(driver.received == bytes);
  CHECK(driver.channel().unsent() == 0);
  CHECK(driver.longest_wait < kNoWait);
}

TEST_CASE("small messages go back and forth without waiting for a timer") {
  const SshServer server;
  Driver driver(server.target("exec cat"));
  REQUIRE(driver.until_open());
  const Time start = now();
  for (int i = 0; i < 200; ++i) {
    driver.received.clear();
    driver.channel().send("0123456789");
    REQUIRE(driver.run(5s, [&] { return driver.received.size() == 10; }));
  }
  // A delayed acknowledgement costs 40 ms each.
  CHECK(now() - start < 4s);
}

TEST_CASE("output written just before the end arrives, stderr apart") {
  const SshServer server;
  Driver driver(server.target("head -c 3000000 /dev/zero; echo oops >&2; exit 3"));
  check_ended(driver, "exit status 3");
  CHECK(driver.received == std::string(3'000'000, '\0'));
  CHECK(driver.diagnostics == "oops\n");
}

TEST_CASE("a command that is not found ends with 127") {
  const SshServer server;
  Driver driver(server.target("exec /no/such/program"));
  check_ended(driver, "exit status 127");
  CHECK(driver.diagnostics.find("/no/such/program") != std::string::npos);
}

TEST_CASE("a command killed by a signal has ended, and the signal is named") {
  const SshServer server;
  Driver driver(server.target("kill -KILL $$"));
  check_ended(driver, "SIGKILL");
}

TEST_CASE("a child that keeps stdout open does not hide the command's end") {
  const SshServer server;
  Driver driver(server.target("sleep 20 & echo $!; exit 4"));
  const Time start = now();
  check_ended(driver, "exit status 4");
  CHECK(now() - start < 10s);
  CHECK(kill(std::stoi(driver.received), SIGKILL) == 0);
}

TEST_CASE("a connection whose server process is killed is lost") {
  const SshServer server;
  Driver driver(server.target("echo $PPID; exec cat"));
  REQUIRE(driver.until_open());
  REQUIRE(driver.run(10s, [&] { return driver.received.ends_with("\n"); }));
  kill(std::stoi(driver.received), SIGKILL);
  REQUIRE(driver.until_closed());
  CHECK(driver.channel().end() == ChannelEnd::lost);
  CHECK(driver.channel().reason().starts_with("the SSH connection to h1 (127.0.0.2) broke: "));
  // Bytes for a closed channel are dropped.
  driver.channel().send("late");
  CHECK(driver.channel().unsent() == 0);
}

TEST_CASE("a peer that stops reading makes bytes wait, not the loop") {
  const SshServer server;
  Driver driver(server.target("echo $PPID; exec cat >/dev/null"));
  REQUIRE(driver.until_open());
  REQUIRE(driver.run(10s, [&] { return driver.received.ends_with("\n"); }));
  const pid_t peer = std::stoi(driver.received);
  REQUIRE(kill(peer, SIGSTOP) == 0);
  const std::string bytes = random_bytes(32u << 20);
  const Time start = now();
  driver.channel().send(bytes);
  driver.run(300ms, [] { return false; });
  CHECK(driver.channel().state() == ChannelState::open);
  CHECK(driver.channel().unsent() > 0);
  CHECK(driver.longest_wait < kNoWait);
  SUBCASE("it goes on when the peer does") {
    REQUIRE(kill(peer, SIGCONT) == 0);
    CHECK(driver.run(20s, [&] { return driver.channel().unsent() == 0; }));
  }
  SUBCASE("closing it does not wait either") {
    driver.run(100ms, [] { return false; });
    CHECK(now() - start < 5s);
    kill(peer, SIGKILL);
  }
}

TEST_CASE("closing the channel ends the far command's input") {
  const SshServer server;
  const std::string mark = server.path("ended");
  {
    Driver driver(server.target("cat >/dev/null; touch " + mark));
    REQUIRE(driver.until_open());
  }
  const Time limit = now() + 10s;
  while (access(mark.c_str(), F_OK) != 0 && now() < limit) poll(nullptr, 0, 5);
  CHECK(access(mark.c_str(), F_OK) == 0);
}

TEST_CASE("many channels at once, none leaves a descriptor behind") {
  SshServer::Options options;
  options.extra = "MaxStartups 100\n";
  const SshServer server(options);
  const size_t before = open_descriptors();
  {
    std::vector<std::unique_ptr<Driver>> drivers;
    for (int i = 0; i < 12; ++i) {
      drivers.push_back(std::make_unique<Driver>(server.target("echo " + std::to_string(i))));
    }
    for (size_t i = 0; i < drivers.size(); ++i) {
      check_ended(*drivers[i], "exit status 0");
      CHECK(drivers[i]->received == std::to_string(i) + "\n");
    }
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("b11: an sshd that drops logins at random gets all of them in the end") {
  SshServer::Options options;
  options.extra = "MaxStartups 3:90:5\n";
  const SshServer server(options);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Driver>> drivers;
    for (int i = 0; i < 16; ++i) {
      drivers.push_back(std::make_unique<Driver>(server.target("exec cat")));
    }
    for (const auto& driver : drivers) {
      const bool open = driver->until_open();
      INFO(driver->channel().reason());
      CHECK(open);
    }
  }
}

TEST_CASE("a channel given up while dialling leaves nothing behind") {
  const size_t before = open_descriptors();
  {
    const Listener silent([](Fd socket) {
      poll(nullptr, 0, 100);
      socket.reset();
    });
    Driver driver(silent.target());
    driver.run(30ms, [] { return false; });
    CHECK(driver.channel().state() == ChannelState::opening);
  }
  const Time limit = now() + 10s;
  while (open_descriptors() != before && now() < limit) poll(nullptr, 0, 5);
  CHECK(open_descriptors() == before);
}
