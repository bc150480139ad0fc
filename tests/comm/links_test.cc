// TCP links' judgement of ends: who is gone, who has only finished.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "base/fd.h"
#include "comm/header.h"
#include "comm/tcp_links.h"
#include "tests/comm/fake_agent.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// Rank 0 of 3, whose links' other ends the test holds.
struct Rank {
  FakeAgent agent{{.size = 3}};
  WaitLimits limits{30s, 1min, nullptr};
  std::unique_ptr<AgentWire> wire;
  std::vector<Fd> ends{3};
  std::unique_ptr<TcpLinks> links;

  Rank() {
    const Fd page(memfd_create("page", MFD_CLOEXEC));
    REQUIRE(ftruncate(page.get(), sizeof(ProgressPage)) == 0);
    const auto path = agent.environment(0)["HVD_AGENT_SOCKET"];
    REQUIRE(AgentWire::join(path, 1, 0, page.get(), limits, wire).ok());
    std::vector<Fd> sockets(3);
    for (uint32_t peer = 1; peer < 3; ++peer) {
      int pair[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
      sockets[peer].reset(pair[0]);
      set_nonblocking(pair[0]);
      ends[peer].reset(pair[1]);
    }
    links = std::make_unique<TcpLinks>(0, std::move(sockets), *wire);
  }

  // Waits for rank 2 alone, which says nothing.
  Outcome wait_for_2() { return links->wait({{2, false, true}}, now() + 200ms); }

  std::string receive(uint32_t peer) {
    char bytes[4096];
    size_t moved = 0;
    const Outcome received = links->receive(peer, bytes, moved);
    return received ? std::string(bytes, moved) : "failed: " + received.text();
  }
};

std::string farewell() {
  const HeaderBytes bytes = encode_header({Op::finalize, 0, 0, 0, 7, 0});
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("a rank that sent its data, said farewell and left is no failure") {
  Rank rank;
  const std::string data = "the last data of the collective";
  REQUIRE(write_all(rank.ends[1].get(), data + farewell()).ok());
  rank.ends[1].reset();
  const Time begin = now();
  while (now() < begin + 150ms) REQUIRE(rank.wait_for_2().ok());
  CHECK(rank.receive(1) == data + farewell());
}

TEST_CASE("a rank that left without a word is a failure of those who wait for another one") {
  Rank rank;
  rank.ends[1].reset();
  const Outcome outcome = rank.wait_for_2();
  CHECK(outcome.code() == HVD_PEER_FAILED);
  CHECK(outcome.text().find("lost its link to rank 1") != std::string::npos);
}

TEST_CASE("a rank that was killed with words unread fails the one that wants more of it") {
  Rank rank;
  REQUIRE(write_all(rank.ends[1].get(), "half").ok());
  rank.ends[1].reset();
  CHECK(rank.wait_for_2().ok());
  CHECK(rank.receive(1) == "half");
  CHECK(rank.receive(1).find("lost its link to rank 1") != std::string::npos);
}

TEST_CASE("all links that have ended are named, those of finished ranks are not") {
  Rank rank;
  rank.ends[1].reset();
  rank.ends[2].reset();
  CHECK(rank.receive(2).find("lost its link to ranks 1 and 2") != std::string::npos);
  Rank other;
  REQUIRE(write_all(other.ends[1].get(), farewell()).ok());
  other.ends[1].reset();
  other.ends[2].reset();
  CHECK(other.receive(2).find("lost its link to rank 2:") != std::string::npos);
}

TEST_CASE("sending to a rank that finalized goes nowhere and fails nothing") {
  Rank rank;
  REQUIRE(write_all(rank.ends[1].get(), farewell()).ok());
  rank.ends[1].reset();
  size_t moved = 0;
  const std::string words = "header";
  CHECK(rank.links->send(1, words, moved).ok());
  CHECK(moved == words.size());
  rank.ends[2].reset();
  CHECK(rank.links->send(2, words, moved).code() == HVD_PEER_FAILED);
}
