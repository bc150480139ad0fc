// A job that survives its launcher: the agent goes on without one, keeps what it has to say, and
// lets a launcher attach.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>

#include "supervisor/agent/open_news.h"
#include "tests/agent/agent_process.h"

using namespace hvd;
using namespace hvd::test;

namespace {

AgentSetup surviving(Duration survive = 1h, Duration silence = 10s) {
  AgentSetup setup;
  setup.silence = silence;
  setup.failure_grace = 300ms;
  setup.survive = survive;
  setup.session = 1;
  return setup;
}

AgentSetup attaching(const AgentProcess& to, uint64_t session, bool take_over, uint64_t heard = 0) {
  AgentSetup setup = surviving();
  setup.job = to.job();
  setup.attach = true;
  setup.session = session;
  setup.take_over = take_over;
  setup.heard = heard;
  return setup;
}

TakeOutput from(uint64_t position, uint32_t rank = 0) {
  TakeOutput take;
  for (const Stream stream : {Stream::out, Stream::err}) {
    take.streams.push_back({1, rank, stream, stream == Stream::out ? position : 0,
                            stream == Stream::out ? position : 0});
  }
  return take;
}

}  // namespace

TEST_CASE("survive: a launcher that takes over is told what runs and what was said") {
  for (const bool pipes : {false, true}) {
    AgentSetup setup = surviving();
    setup.pipes = pipes;
    AgentProcess agent(setup);
    agent.greet();
    agent.send(agent.shell("echo one; sleep 1000"));
    const int32_t pid = agent.expect<WorkerStarted>().pid;
    std::string text;
    REQUIRE(
        agent.pump_until([&] { return (text += agent.take_output(0, Stream::out)) == "one\n"; }));
    agent.hang_up();

    AgentProcess next(attaching(agent, 2, true));
    CHECK(next.greet().refusal.empty());
    const Held held = next.expect<Held>();
    CHECK(held.state == HeldState::running);
    CHECK(held.start.attempt == 1);
    CHECK(next.expect<WorkerStarted>().pid == pid);
    // One byte of it was shown.
    next.send(from(1));
    text.clear();
    REQUIRE(next.pump_until([&] { return (text += next.take_output(0, Stream::out)) == "ne\n"; }));
    CHECK(tree_of(agent.job()).size() >= 1);
    next.send(Goodbye{0});
    CHECK(agent.wait_end() == 0);
    next.wait_end();
    CHECK(tree_of(agent.job()).empty());
  }
}

TEST_CASE("survive: an end that nobody heard of is told to the next launcher") {
  AgentProcess agent(surviving());
  agent.greet();
  TestFolder folder;
  agent.send(
      agent.shell("until [ -e " + folder / "go" + " ]; do sleep 0.01; done; echo last; exit 7"));
  agent.expect<WorkerStarted>();
  agent.hang_up();
  REQUIRE(replace_file(folder / "go", "", 0600));
  REQUIRE(wait_until([&] { return tree_of(agent.job()).empty(); }));
  AgentProcess next(attaching(agent, 2, true));
  next.greet();
  CHECK(next.expect<Held>().state == HeldState::running);
  CHECK(next.expect<WorkerEnded>().exit_code == 7);
  next.send(from(0));
  std::string text;
  REQUIRE(next.pump_until([&] { return (text += next.take_output(0, Stream::out)) == "last\n"; }));
  next.expect<OutputEnd>([](const OutputEnd& end) { return end.stream == Stream::out; });
}

TEST_CASE("survive: in the same session nothing is lost and nothing said twice") {
  AgentProcess agent(surviving());
  agent.greet();
  TestFolder folder;
  agent.send(agent.shell("until [ -e " + folder / "go" + " ]; do sleep 0.01; done; exit 7"));
  agent.expect<WorkerStarted>();  // the first that counts
  agent.hang_up();
  REQUIRE(replace_file(folder / "go", "", 0600));
  REQUIRE(wait_until([&] { return tree_of(agent.job()).empty(); }));
  AgentProcess again(attaching(agent, 1, false, 1));
  again.greet();
  CHECK(again.expect<Held>().heard == 1);  // StartAttempt
  again.send(from(0));
  CHECK(again.expect<WorkerEnded>().exit_code == 7);
  CHECK(again.count<WorkerStarted>() == 0);
}

TEST_CASE("survive: output that nobody takes stops the rank at the credit, and none is lost") {
  AgentProcess agent(surviving());
  agent.greet();
  StartAttempt start = agent.shell("seq 1 200000; sleep 1000");
  start.credit = 64 << 10;
  agent.send(start);
  agent.expect<WorkerStarted>();
  agent.hang_up();
  AgentProcess next(attaching(agent, 2, true));
  next.greet();
  next.expect<Held>();
  next.send(from(0));
  std::string text, expected;
  for (int i = 1; i <= 200000; ++i) expected += std::to_string(i) + "\n";
  REQUIRE(next.pump_until([&] {
    const std::string piece = next.take_output(0, Stream::out);
    text += piece;
    if (!piece.empty()) next.send(Credit{1, 0, Stream::out, piece.size()});
    return text.size() >= expected.size();
  }));
  CHECK((text == expected));
}

TEST_CASE("survive: after its time without a launcher, TERM, the grace and KILL") {
  AgentProcess agent(surviving(500ms));
  agent.greet();
  TestFolder folder;
  agent.send(agent.shell("trap ': >" + folder / "term" +
                         "' TERM; setsid sleep 1000 & while :; do sleep 0.1; done"));
  agent.expect<WorkerStarted>();
  const Time before = now();
  agent.hang_up();
  CHECK(agent.wait_end() == 1);
  CHECK(now() - before >= 800ms);
  CHECK(now() - before < 5s);  // not by the lease, which has no TERM
  CHECK(exists(folder / "term"));
  CHECK(tree_of(agent.job()).empty());
  CHECK(agent.lock_is_free());
  AgentProcess late(attaching(agent, 2, true));
  CHECK(late.greet().absent);
}

TEST_CASE("survive: who watches is not disturbed, and who was replaced stays out") {
  AgentProcess agent(surviving(1h, 500ms));
  agent.greet();
  agent.send(agent.shell("sleep 1000"));
  agent.expect<WorkerStarted>();
  agent.expect<Beat>();
  {
    AgentProcess other(attaching(agent, 2, true));
    CHECK(other.greet().refusal == "job " + agent.job() + " is watched by somebody");
  }
  // The launcher stands still: its connection lives, and it is not heard.
  AgentSetup setup = attaching(agent, 2, true);
  setup.silence = 500ms;
  std::optional<AgentProcess> owner;
  REQUIRE(wait_until([&] {
    owner.emplace(setup);
    return owner->greet().refusal.empty();
  }));
  AgentProcess stale(attaching(agent, 1, false));
  CHECK(stale.greet().refusal == "job " + agent.job() + " is watched by somebody");
}

TEST_CASE("survive: the next agent of the host need not wait for one without a launcher") {
  AgentProcess agent(surviving());
  agent.greet();
  agent.send(agent.shell("sleep 1000"));
  agent.expect<WorkerStarted>();
  agent.hang_up();
  AgentSetup setup = surviving();
  setup.job = agent.job();
  AgentProcess next(setup);
  next.greet();
  CHECK(agent.wait_end() == 1);
}

TEST_CASE("survive: without it a lost launcher ends the job at once") {
  AgentProcess agent({.failure_grace = 100ms});
  agent.greet();
  agent.send(agent.shell("sleep 1000"));
  agent.expect<WorkerStarted>();
  agent.hang_up();
  CHECK(agent.wait_end() == 1);
  CHECK(tree_of(agent.job()).empty());
}

TEST_CASE("survive: what is told again is what somebody may still wait for") {
  OpenNews news;
  const auto shard = [](uint64_t step) {
    ShardSaved m;
    m.attempt = 1;
    m.step = step;
    return m;
  };
  news.sent(WorkerStarted{1, 0, 100});
  news.sent(ExchangeBlob{1, 0, 0, "blob"});
  CHECK(news.heard(ExchangeResult{1, 0, {}}));
  CHECK_FALSE(news.heard(ExchangeResult{1, 0, {}}));  // answered before
  CHECK(news.retell().size() == 2);                   // others may not have been answered
  news.sent(shard(10));
  CHECK(news.heard(SaveResult{1, 10, ""}));
  CHECK_FALSE(news.heard(SaveResult{1, 10, ""}));
  CHECK(news.retell().size() == 3);
  news.sent(shard(20));
  CHECK(news.retell().size() == 4);
  CHECK(news.heard(SaveResult{1, 20, ""}));
  CHECK(news.retell().size() == 3);  // of step 10 everybody knows
  CHECK_FALSE(news.heard(LoadResult{1, ""}));
  news.sent(StateLoaded{1, 0, 10, "d", ""});
  CHECK(news.heard(LoadResult{1, ""}));
  news.sent(Beat{1, 1, {}});
  news.sent(Output{1, 0, Stream::out, "text"});
  CHECK(news.retell().size() == 4);
  ShardKept kept;
  kept.step = 5;
  news.sent(kept);
  CHECK(news.heard(KeepResult{1, 5, ""}));
  CHECK_FALSE(news.heard(KeepResult{1, 5, ""}));
  CHECK(news.retell().size() == 5);
  news.sent(Leaving{"soon"});
  StartAttempt start;
  start.attempt = 2;
  CHECK(news.heard(start));
  CHECK(news.retell().size() == 1);
}
