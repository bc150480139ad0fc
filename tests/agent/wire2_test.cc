// Wire 2 and the notification sockets, with a worker that does as told.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/process.h"
#include "tests/agent/agent_process.h"

using namespace hvd;
using namespace hvd::test;

namespace {

StartAttempt worker(AgentProcess& agent, std::vector<std::string> verbs, uint32_t ranks = 1,
                    uint32_t number = 1) {
  verbs.insert(verbs.begin(), HVD_TEST_WORKER);
  return agent.attempt(std::move(verbs), ranks, number);
}

// Waits for a line on a rank's standard output.
std::string line_of(AgentProcess& agent, uint32_t rank, std::string& rest, uint32_t attempt = 1) {
  REQUIRE(agent.pump_until([&] {
    rest += agent.take_output(rank, Stream::out, attempt);
    return rest.find('\n') != std::string::npos;
  }));
  const std::string line = rest.substr(0, rest.find('\n'));
  rest.erase(0, line.size() + 1);
  return line;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("workers join, exchange, and are told results") {
  AgentProcess agent;
  agent.greet();
  agent.send(worker(agent, {"join", "exchange", "7", "blob", "finalize"}, 2));
  std::string out[2];
  for (const uint32_t rank : {0u, 1u}) {
    CHECK(line_of(agent, rank, out[rank]) == "welcome rank=" + std::to_string(rank) +
                                                 " size=2 local=" + std::to_string(rank) +
                                                 "/2 address=127.0.0.1 secret=sesame");
    const auto blob =
        agent.expect<ExchangeBlob>([&](const ExchangeBlob& b) { return b.rank == rank; });
    CHECK(blob.attempt == 1);
    CHECK(blob.round == 7);
    CHECK(blob.blob == "blob" + std::to_string(rank));
  }
  agent.send(ExchangeResult{9, 7, {"of", "another", "attempt"}});
  agent.send(ExchangeResult{1, 7, {"a", "b"}});
  for (const uint32_t rank : {0u, 1u}) {
    CHECK(line_of(agent, rank, out[rank]) == "exchanged a b");
    const auto ended = agent.expect<WorkerEnded>();
    CHECK(ended.exit_code == 0);
    CHECK_FALSE(ended.left_early);
  }
}

TEST_CASE("a worker that joined and exits with 0 without finalizing left early") {
  AgentProcess agent;
  agent.greet();
  agent.send(worker(agent, {"join", "exit", "0"}));
  CHECK(agent.expect<WorkerEnded>().left_early);
  agent.send(StopAttempt{1, 0, false, 0, ""});
  agent.expect<AttemptStopped>();
  agent.send(worker(agent, {"join", "exit", "3"}, 1, 2));
  const auto ended = agent.expect<WorkerEnded>();
  CHECK(ended.exit_code == 3);
  CHECK_FALSE(ended.left_early);
}

TEST_CASE("what a worker says of itself is stamped with its own rank and attempt") {
  AgentProcess agent;
  agent.greet();
  agent.send(worker(agent, {"join", "saved", "100", "abort", "9", "exit", "9"}, 1, 3));
  const auto saved = agent.expect<ShardSaved>();
  CHECK(saved.attempt == 3);
  CHECK(saved.shard.rank == 0);
  CHECK(saved.step == 100);
  CHECK(saved.note == "note");
  const auto aborted = agent.expect<WorkerAborted>();
  CHECK(aborted.attempt == 3);
  CHECK(aborted.rank == 0);
  CHECK(aborted.code == 9);
  CHECK(aborted.reason == "why");
}

namespace {

// Memory of that name that a process holds.
size_t memories_of(pid_t pid, const std::string& name) {
  size_t found = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    found += has(std::filesystem::read_symlink(entry.path(), gone).string(), "memfd:" + name);
  }
  return found;
}

std::string kept_by(AgentProcess& agent, uint32_t rank, uint64_t step, KeptState& state) {
  const auto kept = agent.expect<ShardKept>(
      [&](const ShardKept& k) { return k.shard.rank == rank && k.step == step; });
  state = {kept.attempt, kept.step, kept.shard};
  return kept.error;
}

}  // namespace

TEST_CASE(
    "what a rank keeps in memory outlives it, two of each rank, and goes to the next attempt") {
  AgentProcess agent;
  agent.greet();
  agent.send(worker(agent, {"join", "keep", "1", "keep", "2", "keep", "3", "exit", "9"}, 2));
  KeptState old, state[2];
  for (const uint32_t rank : {0u, 1u}) {
    CHECK(kept_by(agent, rank, 2, old) == "");
    CHECK(kept_by(agent, rank, 3, state[rank]) == "");
    CHECK(state[rank].attempt == 1);
    agent.expect<WorkerEnded>();
  }
  CHECK(memories_of(agent.agent(), "kept") == 4);
  agent.send(StopAttempt{1, 0, false, 0, ""});
  agent.expect<AttemptStopped>();
  SUBCASE("each its own") {
    StartAttempt start = worker(agent, {"join", "wait"}, 2, 2);
    start.kept = {state[0], state[1]};
    agent.send(start);
    for (const uint32_t rank : {0u, 1u}) {
      std::string out;
      const std::string number = std::to_string(rank);
      CHECK(line_of(agent, rank, out, 2) ==
            "goes on from step 3 of rank " + number + ": state 3 of " + number);
    }
    CHECK(memories_of(agent.agent(), "kept") == 2);
  }
  SUBCASE("one for all, where one is left") {
    StartAttempt start = worker(agent, {"join", "wait"}, 2, 2);
    start.kept = {state[1]};
    agent.send(start);
    for (const uint32_t rank : {0u, 1u}) {
      std::string out;
      CHECK(line_of(agent, rank, out, 2) == "goes on from step 3 of rank 1: state 3 of 1");
    }
    CHECK(memories_of(agent.agent(), "kept") == 1);
  }
  SUBCASE("none, where the attempt does not go on from it") {
    agent.send(worker(agent, {"join", "wait"}, 2, 2));
    std::string out;
    CHECK(has(line_of(agent, 0, out, 2), "welcome"));
    CHECK(memories_of(agent.agent(), "kept") == 0);
  }
}

TEST_CASE("a kept state without its memory is an error") {
  AgentProcess agent;
  agent.greet();
  agent.send(worker(agent, {"join", "keep-nothing", "1", "wait"}));
  KeptState state;
  CHECK(kept_by(agent, 0, 1, state) == "its memory did not come with it");
}

TEST_CASE("words spoken just before an end are told before the end, more than one read of them") {
  AgentProcess agent;
  agent.greet();
  agent.send(worker(agent, {"join", "say", "ready", "await-usr1", "blob", "150000", "saved", "5",
                            "finalize", "exit", "0"}));
  std::string out;
  line_of(agent, 0, out);
  REQUIRE(line_of(agent, 0, out) == "ready");
  // The agent finds all of it at once: what is unread, and the end.
  const pid_t stopped = agent.agent();
  kill(stopped, SIGSTOP);
  kill(agent.expect<WorkerStarted>().pid, SIGUSR1);
  REQUIRE(tree_is_dead(agent.job()));
  kill(stopped, SIGCONT);
  CHECK_FALSE(agent.expect<WorkerEnded>().left_early);
  CHECK(agent.count<ShardSaved>() == 1);
  CHECK(agent.expect<ExchangeBlob>().blob.size() == 150000);
}

TEST_CASE("joined workers hear of a failed peer at once, and so do those who join later") {
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell(std::string("trap '' TERM; ") + HVD_TEST_WORKER +
                         " join await-failure; echo done; " + HVD_TEST_WORKER +
                         " join; exec sleep 1000"));
  std::string out;
  CHECK(has(line_of(agent, 0, out), "welcome"));
  StopAttempt stop;
  stop.attempt = 1;
  stop.grace_ns = static_cast<uint64_t>(Duration(60s).count());
  stop.failed = true;
  stop.failed_rank = 5;
  stop.reason = "rank 5 was killed";
  agent.send(stop);
  // The test's worker is a child of the shell, so TERM does not reach it.
  CHECK(line_of(agent, 0, out) == "peer 5 failed: rank 5 was killed");
  CHECK(line_of(agent, 0, out) == "done");
  // One connection for a rank and attempt.
  CHECK(line_of(agent, 0, out) == "not welcome");
}

TEST_CASE("a wrong attempt, a second join and garbage are refused") {
  AgentProcess agent;
  agent.greet();
  std::string out;
  SUBCASE("wrong attempt") {
    agent.send(worker(agent, {"join-attempt", "2", "wait"}));
    CHECK(line_of(agent, 0, out) == "not welcome");
    CHECK(has(agent.expect<AgentNotice>().text, "rank 0 of attempt 2"));
  }
  SUBCASE("second join of the rank") {
    agent.send(agent.shell(std::string(HVD_TEST_WORKER) + " join wait & sleep 0.3; " +
                           HVD_TEST_WORKER + " join; exec sleep 1000"));
    CHECK(has(line_of(agent, 0, out), "welcome rank=0"));
    CHECK(line_of(agent, 0, out) == "not welcome");
    CHECK(has(agent.expect<AgentNotice>().text, "has joined already"));
  }
  SUBCASE("garbage") {
    agent.send(worker(agent, {"join", "garbage", "eof", "wait"}));
    CHECK(has(line_of(agent, 0, out), "welcome"));
    CHECK(line_of(agent, 0, out) == "closed");
    CHECK(has(agent.expect<AgentNotice>().text, "rank 0 sent a message that cannot be understood"));
  }
  CHECK(agent.count<WorkerEnded>() == 0);
}

TEST_CASE("steps are read from the shared page and told in beats") {
  AgentProcess agent({.silence = 500ms});
  agent.greet();
  agent.send(worker(agent, {"join", "step", "41", "wait"}));
  const auto beat = agent.expect<Beat>([](const Beat& b) { return !b.steps.empty(); });
  CHECK(beat.attempt == 1);
  CHECK(beat.steps[0].rank == 0);
  CHECK(beat.steps[0].step == 41);
  const auto later =
      agent.expect<Beat>([&](const Beat& b) { return b.agent_time > beat.agent_time; });
  CHECK(later.steps.empty());
}

TEST_CASE("the last step is told with the end") {
  AgentProcess agent;
  agent.greet();
  agent.send(worker(agent, {"join", "step", "70", "exit", "1"}));
  const auto ended = agent.expect<WorkerEnded>();
  REQUIRE(ended.steps.size() == 1);
  CHECK(ended.steps[0].step == 70);
}

TEST_CASE("a page that shrinks does no harm") {
  AgentProcess agent({.silence = 500ms});
  agent.greet();
  agent.send(worker(agent, {"join", "step", "5", "say", "stepped", "shrink", "wait"}));
  std::string out;
  line_of(agent, 0, out);
  CHECK(line_of(agent, 0, out) == "stepped");
  for (int i = 0; i < 5; ++i) agent.expect<Beat>();
  CHECK_FALSE(agent.ended());
}

TEST_CASE("notifications give steps and foreign checkpoints, in whatever order the keys come") {
  AgentProcess agent({.silence = 500ms});
  agent.greet();
  agent.send(worker(agent, {"notify", "READY=1\nSTATUS=x\nUNKNOWN=1", "notify", "X_HVD_STEP=12",
                            "notify", "X_HVD_CHECKPOINT=/ckpt/a", "notify",
                            "X_HVD_CHECKPOINT=/ckpt/b\nX_HVD_STEP=13", "wait"}));
  const auto first = agent.expect<ForeignCheckpoint>();
  CHECK(first.attempt == 1);
  CHECK(first.rank == 0);
  CHECK(first.step == 12);
  CHECK(first.path == "/ckpt/a");
  const auto second = agent.expect<ForeignCheckpoint>();
  CHECK(second.step == 13);
  CHECK(second.path == "/ckpt/b");
  const auto beat = agent.expect<Beat>([](const Beat& b) { return !b.steps.empty(); });
  CHECK(beat.steps[0].step >= 12);
}

TEST_CASE("a notification sent just before an end counts") {
  AgentProcess agent;
  agent.greet();
  agent.send(worker(agent, {"notify", "X_HVD_STEP=99", "exit", "1"}));
  const auto ended = agent.expect<WorkerEnded>();
  REQUIRE(ended.steps.size() == 1);
  CHECK(ended.steps[0].step == 99);
}

// ---- progress ----

TEST_CASE("a rank that makes no more progress is told, and seen for what it is") {
  AgentProcess agent;
  agent.greet();
  StartAttempt start = worker(agent, {"join", "step", "41", "wait"});
  start.stall_ns = 300'000'000;
  agent.send(start);
  const auto started = agent.expect<WorkerStarted>();
  CHECK(agent.expect<RankStalled>().rank == 0);
  const auto look = [&](uint32_t number) {
    agent.send(LookAtRanks{1, number});
    const auto seen = agent.expect<RanksSeen>();
    CHECK(seen.look == number);
    REQUIRE(seen.ranks.size() == 1);
    return seen.ranks[0];
  };
  const RankView waiting = look(1);
  CHECK(waiting.step == 41);
  CHECK(waiting.quiet_ns >= start.stall_ns);
  CHECK(waiting.state == 'S');
  REQUIRE(kill(started.pid, SIGSTOP) == 0);
  CHECK(wait_until([&] { return process_state(started.pid) == 'T'; }));
  CHECK(look(2).state == 'T');
  CHECK(agent.count<RankMoved>() == 0);
}

TEST_CASE("a rank that is stopped while it saves is not given the time of a disk") {
  AgentProcess agent;
  agent.greet();
  StartAttempt start = worker(agent, {"join", "step", "41", "save", "wait"});
  // A disk would get ten times as long, which is more than this test waits.
  start.stall_ns = 4'000'000'000;
  agent.send(start);
  const auto started = agent.expect<WorkerStarted>();
  agent.expect<Beat>([](const Beat& beat) { return !beat.steps.empty(); });
  REQUIRE(kill(started.pid, SIGSTOP) == 0);
  CHECK(agent.expect<RankStalled>().rank == 0);
}

TEST_CASE("what a rank writes is progress only where the user asked for a limit") {
  for (const bool asked : {true, false}) {
    CAPTURE(asked);
    AgentProcess agent({.silence = 500ms});
    agent.greet();
    const TestFolder folder;
    StartAttempt start = agent.shell("echo up; while ! test -e " + (folder / "go") +
                                     "; do sleep 0.05; done; echo on; exec sleep 1000");
    start.stall_ns = 200'000'000;
    start.stall_asked = asked;
    agent.send(start);
    if (asked) {
      agent.expect<RankStalled>();
      CHECK(std::ofstream(folder / "go").is_open());
      agent.expect<RankMoved>();
    } else {
      CHECK(std::ofstream(folder / "go").is_open());
      for (int i = 0; i < 10; ++i) agent.expect<Beat>();
      CHECK(agent.count<RankStalled>() == 0);
    }
  }
}

TEST_CASE("a stop kills the stalled rank at once and gives the others their grace") {
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell("trap '' TERM; echo up; sleep 1000 & wait; wait", 2));
  for (const uint32_t rank : {0u, 1u}) {
    std::string out;
    CHECK(line_of(agent, rank, out) == "up");
  }
  StopAttempt stop;
  stop.attempt = 1;
  stop.grace_ns = 3'000'000'000;
  stop.failed = stop.kill_failed = true;
  stop.failed_rank = 1;
  agent.send(stop);
  const Time asked = now();
  const auto first = agent.expect<WorkerEnded>();
  CHECK(first.rank == 1);
  CHECK(first.signal == SIGKILL);
  CHECK(first.killer == Killer::agent);
  agent.expect<AttemptStopped>();
  CHECK(now() - asked >= 2900ms);
}
