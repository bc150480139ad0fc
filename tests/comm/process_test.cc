// libhvdcomm.so as programs use it: ranks are processes, links are TCP, the agent is a fake one.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "base/checkpoint_format.h"
#include "base/codec.h"
#include "tests/comm/fake_agent.h"
#include "tests/comm/processes.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

constexpr Duration kLimit = 60s;
constexpr int kFailedAsExpected = 3;

std::vector<Process> start(const FakeAgent& agent, uint32_t size, const std::string& scenario,
                           const Environment& extra = {}) {
  std::vector<Process> ranks;
  for (uint32_t rank = 0; rank < size; ++rank) {
    Environment environment = agent.environment(rank);
    environment.insert(extra.begin(), extra.end());
    ranks.emplace_back(std::vector<std::string>{HVD_COMM_WORKER, scenario}, environment);
  }
  return ranks;
}

void check_all_ok(std::vector<Process>& ranks) {
  for (Process& rank : ranks) {
    const Ending ending = rank.wait(kLimit);
    CAPTURE(rank.output());
    CHECK(ending.signal == 0);
    CHECK(ending.exit_code == 0);
    CHECK(rank.output().starts_with("ok"));
  }
}

// The rank ended by a failure whose text contains `words`, soon.
void check_failed(Process& rank, const std::string& words, Duration limit = 10s) {
  const Ending ending = rank.wait(limit);
  CAPTURE(rank.output());
  CHECK(ending.signal == 0);
  CHECK(ending.exit_code == kFailedAsExpected);
  CHECK_MESSAGE(rank.output().find(words) != std::string::npos, "expected: ", words);
}

// A connection to "127.0.0.1:port".
Fd connect_to(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  return fd;
}

// What somebody who knows the protocol says to open a link.
std::string hello(uint32_t attempt, uint32_t from, uint32_t to, const std::string& secret) {
  Encoder encoder;
  encoder(uint32_t{0x4456484c}, kProtocol, attempt, from, to, secret);
  return encoder.take();
}

// What comes before the other side closes: empty when a caller learns nothing.
std::string answer_until_closed(int fd) {
  std::string answer;
  char bytes[256];
  while (true) {
    pollfd item{fd, POLLIN, 0};
    if (poll(&item, 1, 30000) != 1) return answer + "[still open]";
    const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n <= 0) return answer;
    answer.append(bytes, static_cast<size_t>(n));
  }
}

}  // namespace

TEST_CASE("the library exports its C interface and nothing else") {
  FILE* pipe = popen("nm -D --defined-only " HVD_COMM_LIBRARY, "r");
  REQUIRE(pipe != nullptr);
  std::set<std::string> names;
  char name[256];
  char kind = 0;
  while (std::fscanf(pipe, "%*s %c %255s", &kind, name) == 2) names.insert(name);
  CHECK(pclose(pipe) == 0);
  CHECK(names.size() == 21);
  for (const std::string& exported : names) CHECK(exported.starts_with("hvd_"));
}

TEST_CASE("without hvdlaunch a process is rank 0 of 1") {
  std::vector<Process> ranks;
  ranks.emplace_back(std::vector<std::string>{HVD_COMM_WORKER, "collectives"}, Environment{});
  ranks.emplace_back(std::vector<std::string>{HVD_COMM_WORKER, "arguments"}, Environment{});
  ranks.emplace_back(std::vector<std::string>{HVD_COMM_WORKER, "forked"}, Environment{});
  check_all_ok(ranks);
}

TEST_CASE("collectives give the right results") {
  for (const uint32_t size : {1u, 2u, 3u, 4u, 7u}) {
    CAPTURE(size);
    FakeAgent agent({.size = size});
    auto ranks = start(agent, size, "collectives");
    check_all_ok(ranks);
    for (uint32_t rank = 0; rank < size; ++rank) {
      CHECK(agent.await_finalized(rank));
      CHECK(agent.progress(rank).step == 18);
      CHECK(agent.progress(rank).heartbeats == 2);
      CHECK(agent.progress(rank).collectives == 16);
      CHECK(agent.progress(rank).in_calls_ns > 0);
    }
  }
}

TEST_CASE("bad arguments are refused and harm nothing") {
  FakeAgent agent({.size = 3});
  auto ranks = start(agent, 3, "arguments");
  check_all_ok(ranks);
}

TEST_CASE("what a rank sent arrives though it finalizes and ends at once") {
  FakeAgent agent({.size = 5});
  auto ranks = start(agent, 5, "send_and_leave");
  check_all_ok(ranks);
}

TEST_CASE("a fork is refused, its parent goes on") {
  FakeAgent agent({.size = 2});
  auto ranks = start(agent, 2, "forked");
  check_all_ok(ranks);
}

TEST_CASE("kill -9 during a collective is an error on all others that names the rank") {
  for (const bool told : {true, false}) {
    for (const uint32_t victim : {0u, 2u}) {
      CAPTURE(told);
      CAPTURE(victim);
      FakeAgent agent({.size = 4, .tells_deaths = told});
      auto ranks = start(agent, 4, "loop");
      REQUIRE(agent.await_collectives(victim, 20));
      ranks[victim].signal(SIGKILL);
      CHECK(ranks[victim].wait(kLimit).signal == SIGKILL);
      for (uint32_t rank = 0; rank < 4; ++rank) {
        if (rank != victim) check_failed(ranks[rank], std::to_string(victim));
        if (rank != victim) CHECK(ranks[rank].output().starts_with("allreduce: 4: rank "));
      }
    }
  }
}

TEST_CASE("kill -9 of a rank that the others wait for") {
  for (const bool told : {true, false}) {
    CAPTURE(told);
    FakeAgent agent({.size = 3, .tells_deaths = told});
    auto ranks = start(agent, 3, "stuck");
    REQUIRE(agent.await_collectives(2, 1));
    ranks[2].signal(SIGKILL);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      check_failed(ranks[rank],
                   told ? "rank 2 is gone: it ended in the test" : "lost its link to rank 2");
    }
    CHECK(ranks[2].wait(kLimit).signal == SIGKILL);
  }
}

TEST_CASE("a stopped rank ends the wait at HVD_TIMEOUT, by name") {
  FakeAgent agent({.size = 2});
  auto ranks = start(agent, 2, "stuck", {{"HVD_TIMEOUT", "500ms"}});
  REQUIRE(agent.await_collectives(1, 1));
  ranks[1].signal(SIGSTOP);
  check_failed(ranks[0], "waited 0.5 s in barrier (collective 1) for rank 1");
  ranks[1].signal(SIGKILL);
  CHECK(ranks[1].wait(kLimit).signal == SIGKILL);
}

TEST_CASE("the agent's end is an error at once") {
  FakeAgent agent({.size = 2});
  auto ranks = start(agent, 2, "stuck");
  REQUIRE(agent.await_collectives(1, 1));
  agent.die();
  check_failed(ranks[0], "the agent of this host is gone");
  ranks[1].signal(SIGKILL);
  ranks[1].wait(kLimit);
}

TEST_CASE("a backend that cannot work here is an error that names it, on every rank") {
  FakeAgent agent({.size = 2, .tells_deaths = false});
  auto ranks =
      start(agent, 2, "collectives", {{"HVD_BACKEND", "nccl"}, {"CUDA_VISIBLE_DEVICES", ""}});
  for (Process& rank : ranks) check_failed(rank, "the backend nccl ", 60s);
}

TEST_CASE("different collectives are an error on every rank that names both") {
  FakeAgent agent({.size = 3});
  auto ranks = start(agent, 3, "mismatch");
  for (Process& rank : ranks) {
    check_failed(rank, "allreduce of 4 float64");
    CHECK(rank.output().find("rank 1 calls barrier") != std::string::npos);
  }
}

TEST_CASE("a rank that finalized is named by those that go on") {
  FakeAgent agent({.size = 3});
  auto ranks = start(agent, 3, "leave_early");
  CHECK(ranks[1].wait(kLimit).exit_code == 0);
  check_failed(ranks[0], "rank 1 calls finalize");
  check_failed(ranks[2], "rank 1 calls finalize");
}

TEST_CASE("abort reports code and reason and ends the others' collectives") {
  FakeAgent agent({.size = 3});
  auto ranks = start(agent, 3, "aborts");
  CHECK(ranks[0].wait(kLimit).exit_code == 42);
  check_failed(ranks[1], "rank 0");
  check_failed(ranks[2], "rank 0");
  REQUIRE(agent.aborted().size() == 1);
  CHECK(agent.aborted()[0].rank == 0);
  CHECK(agent.aborted()[0].code == 42);
  CHECK(agent.aborted()[0].reason == "the loss is not a number");
}

TEST_CASE("a rank that never comes ends hvd_init at its limit") {
  FakeAgent agent({.size = 3, .tells_deaths = false});
  auto ranks = start(agent, 2, "collectives", {{"HVD_INIT_TIMEOUT", "500ms"}});
  for (Process& rank : ranks) check_failed(rank, "for all 3 ranks to call it");
}

TEST_CASE("a rank that dies during hvd_init ends it on the others") {
  FakeAgent agent({.size = 3});
  auto ranks = start(agent, 2, "collectives");
  ranks.emplace_back(std::vector<std::string>{HVD_COMM_WORKER, "collectives"},
                     Environment{{"HVD_AGENT_SOCKET", agent.environment(2)["HVD_AGENT_SOCKET"]},
                                 {"HVD_RANK", "2"},
                                 {"HVD_ATTEMPT", "1"},
                                 {"HVD_BACKEND", "quantum"}});
  check_failed(ranks[2], "HVD_BACKEND is 'quantum'");
  // That one ended before it had joined; now one that had.
  REQUIRE(agent.await_joined(0));
  REQUIRE(agent.await_joined(1));
  ranks[0].signal(SIGKILL);
  CHECK(ranks[0].wait(kLimit).signal == SIGKILL);
  check_failed(ranks[1], "rank 0 is gone");
}

TEST_CASE("strangers and ranks of an old attempt learn nothing and delay nothing") {
  std::vector<Fd> strangers;
  std::vector<std::string> answers(5);
  std::vector<std::thread> listeners;
  Time exchanged{};
  const auto call = [&](const std::string& address, const std::string& words) {
    strangers.push_back(connect_to(address));
    REQUIRE(write_all(strangers.back().get(), words).ok());
    const size_t i = strangers.size() - 1;
    if (!words.empty()) {
      listeners.emplace_back([&, i] { answers[i] = answer_until_closed(strangers[i].get()); });
    }
  };
  strangers.reserve(5);
  FakeAgent* self = nullptr;
  const auto intrude = [&](const std::vector<std::string>& addresses) {
    const std::string secret = self->secret();
    call(addresses[0], "");  // says nothing, for as long as it likes
    call(addresses[0],
         "GET / HTTP/1.1\r\nHost: somewhere.example.com\r\nAccept: text/html\r\n\r\n");
    call(addresses[0], hello(6, 1, 0, secret));  // attempt 7 is running
    call(addresses[0], hello(7, 1, 0, std::string(secret.size(), '?')));
    call(addresses[0], hello(7, 1, 2, secret));  // meant for another rank
    exchanged = now();
  };
  FakeAgent agent({.size = 3, .attempt = 7, .before_exchange = intrude});
  self = &agent;
  auto ranks = start(agent, 3, "collectives");
  check_all_ok(ranks);
  CHECK(now() - exchanged < 4s);  // well below the 5 s that a caller has for its hello
  for (std::thread& listener : listeners) listener.join();
  REQUIRE(strangers.size() == 5);
  for (const std::string& answer : answers) CHECK(answer.empty());
}

TEST_CASE("a rank of an old attempt is not let in") {
  FakeAgent agent({.size = 2, .attempt = 7});
  Environment old = agent.environment(1);
  old["HVD_ATTEMPT"] = "6";
  Process stale({HVD_COMM_WORKER, "collectives"}, old);
  check_failed(stale, "the agent of this host is gone");
}

TEST_CASE("checkpoints are saved whole and load again") {
  const TemporaryFolder folder;
  const std::string dir = folder.path() + "/new/ckpt";
  const std::string step = dir + "/step-000000100";
  {
    FakeAgent agent({.size = 4, .checkpoint_dir = dir});
    auto ranks = start(agent, 4, "save");
    check_all_ok(ranks);
  }
  const Result<std::string> text = read_file(step + "/manifest.json", kMaxManifest);
  REQUIRE(text.ok());
  const Result<Manifest> manifest = parse_manifest(*text);
  REQUIRE(manifest.ok());
  CHECK(manifest->replicated);
  CHECK(manifest->note == "note of rank 0");
  for (const Shard& shard : manifest->shards) {
    CHECK(verify_shard(step + "/" + shard_file(shard.rank), expected_shard(*manifest, shard)).ok());
  }
  SUBCASE("by the same number of ranks, each its own") {
    FakeAgent agent({.size = 4, .resume_from = step});
    auto ranks = start(agent, 4, "load");
    check_all_ok(ranks);
    CHECK(ranks[3].output() == "ok note of rank 3\n");
    CHECK(agent.loaded().size() == 4);
    CHECK(agent.loaded()[0].state_digest == manifest->shards[0].state_digest);
    CHECK(agent.loaded()[0].step == 100);
  }
  SUBCASE("by more and by fewer ranks") {
    for (const uint32_t size : {1u, 3u, 6u}) {
      FakeAgent agent({.size = size, .resume_from = step});
      auto ranks = start(agent, size, "load");
      check_all_ok(ranks);
    }
  }
  SUBCASE("with shards missing, as on a host's private folder") {
    for (const uint32_t rank : {0u, 1u, 3u}) unlink((step + "/" + shard_file(rank)).c_str());
    FakeAgent agent({.size = 4, .resume_from = step});
    auto ranks = start(agent, 4, "load");
    check_all_ok(ranks);
  }
  SUBCASE("alone, without hvdlaunch") {
    std::vector<Process> ranks;
    ranks.emplace_back(std::vector<std::string>{HVD_COMM_WORKER, "load"},
                       Environment{{"HVD_RESUME_FROM", step}});
    check_all_ok(ranks);
  }
  SUBCASE("a damaged shard is an error on every rank") {
    const std::string path = step + "/" + shard_file(2);
    Result<std::string> bytes = read_file(path, 1u << 20);
    REQUIRE(bytes.ok());
    bytes->back() = static_cast<char>(bytes->back() ^ 1);
    REQUIRE(replace_file(path, *bytes, 0644).ok());
    FakeAgent agent({.size = 4, .resume_from = step});
    auto ranks = start(agent, 4, "load");
    for (Process& rank : ranks) check_failed(rank, shard_file(2) + " is damaged");
  }
  SUBCASE("an array of another size is an error that names it") {
    FakeAgent agent({.size = 2, .resume_from = step});
    auto ranks = start(agent, 2, "load_wrong");
    for (Process& rank : ranks)
      check_failed(rank, "has the array 'weights' with 4000 bytes of F32");
  }
}

TEST_CASE("arrays of a rank's own need the same number of ranks") {
  const TemporaryFolder folder;
  const std::string step = folder.path() + "/step-000000100";
  {
    FakeAgent agent({.size = 3, .checkpoint_dir = folder.path()});
    auto ranks = start(agent, 3, "save_own");
    check_all_ok(ranks);
  }
  {
    FakeAgent agent({.size = 3, .resume_from = step});
    auto ranks = start(agent, 3, "load_own");
    check_all_ok(ranks);
  }
  FakeAgent agent({.size = 2, .resume_from = step});
  auto ranks = start(agent, 2, "load_own");
  for (Process& rank : ranks) check_failed(rank, "was saved by 3 ranks whose states differ");
}

TEST_CASE("a save that is refused or cannot be written is an error, and nothing is committed") {
  const TemporaryFolder folder;
  {
    FakeAgent agent({.size = 2,
                     .checkpoint_dir = folder.path(),
                     .save_refusal = "attempt 1 is not the current one"});
    auto ranks = start(agent, 2, "save");
    for (Process& rank : ranks) {
      check_failed(rank, "step 100 was not saved: attempt 1 is not the current one");
    }
  }
  REQUIRE(replace_file(folder.path() + "/file", "x", 0644).ok());
  FakeAgent agent({.size = 2, .checkpoint_dir = folder.path() + "/file"});
  auto ranks = start(agent, 2, "save");
  for (Process& rank : ranks) check_failed(rank, "could not save step 100");
  FakeAgent none({.size = 2, .tells_deaths = false});
  auto others = start(none, 2, "save");
  for (Process& rank : others) check_failed(rank, "HVD_CHECKPOINT_DIR is not set");
}

TEST_CASE(
    "states are kept in memory that the agent gets, one after the other, and are whole shards") {
  const TemporaryFolder folder;
  SUBCASE("each") {
    FakeAgent agent({.size = 2, .checkpoint_dir = folder.path()});
    auto ranks = start(agent, 2, "keep");
    check_all_ok(ranks);
    const std::vector<std::string> kept = agent.kept();
    CHECK(kept.size() >= 6);  // of the last, the process need not wait for its end
    CHECK(std::find(kept.begin(), kept.end(), "") == kept.end());
  }
  SUBCASE("but for one, of which the next call tells") {
    FakeAgent agent({.size = 2, .checkpoint_dir = folder.path(), .keep_refusal = "no room"});
    auto ranks = start(agent, 2, "keep");
    for (Process& rank : ranks) {
      CHECK(rank.wait(kLimit).exit_code == 0);
      CHECK(rank.output() == "step 1 is not kept in memory: no room\nok\n");
    }
  }
  SUBCASE("not without a checkpoint directory to fall back to") {
    FakeAgent agent({.size = 1});
    auto ranks = start(agent, 1, "keep");
    check_failed(ranks[0], "HVD_CHECKPOINT_DIR is not set");
  }
  SUBCASE("and alone there is nothing to do") {
    Process alone({HVD_COMM_WORKER, "keep"}, {});
    CHECK(alone.wait(kLimit).exit_code == 0);
    CHECK(alone.output() == "ok\n");
  }
}

TEST_CASE("a process alone saves, saves again and loads") {
  const TemporaryFolder folder;
  const std::string dir = folder.path() + "/ckpt";
  for (int i = 0; i < 2; ++i) {
    std::vector<Process> ranks;
    ranks.emplace_back(std::vector<std::string>{HVD_COMM_WORKER, "save"},
                       Environment{{"HVD_CHECKPOINT_DIR", dir}});
    check_all_ok(ranks);
    CHECK(access((dir + "/step-000000100/manifest.json").c_str(), F_OK) == 0);
    CHECK(access((dir + "/step-000000100.tmp-0").c_str(), F_OK) != 0);
  }
  std::vector<Process> ranks;
  ranks.emplace_back(std::vector<std::string>{HVD_COMM_WORKER, "load"},
                     Environment{{"HVD_RESUME_FROM", dir + "/step-000000100/"}});
  check_all_ok(ranks);
  Process fresh({HVD_COMM_WORKER, "load"}, {});
  CHECK(fresh.wait(kLimit).exit_code == 0);
  CHECK(fresh.output() == "none\n");
}
