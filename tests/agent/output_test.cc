// Output against credit.
#include <doctest/doctest.h>

#include "tests/agent/agent_process.h"

using namespace hvd;
using namespace hvd::test;

namespace {

constexpr size_t kMebibyte = 1u << 20;

StartAttempt writes_a_mebibyte(AgentProcess& agent, uint64_t credit, uint32_t number = 1) {
  StartAttempt start = agent.shell("head -c 1048576 /dev/zero | tr '\\0' x", 1, number);
  start.credit = credit;
  return start;
}

// Lets `beats` more beats pass, which is time for output that must not come.
void let_beats_pass(AgentProcess& agent, int beats) {
  for (int i = 0; i < beats; ++i) {
    const int64_t from = now().time_since_epoch().count();
    agent.expect<Beat>([&](const Beat& b) { return b.agent_time >= from; });
  }
}

}  // namespace

TEST_CASE("half a line is passed on as it is, and the end is told") {
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell("printf half; printf 'line\\n\\0x' >&2"));
  for (const Stream stream : {Stream::out, Stream::err}) {
    agent.expect<OutputEnd>([&](const OutputEnd& e) { return e.stream == stream; });
  }
  CHECK(agent.take_output(0, Stream::out) == "half");
  CHECK(agent.take_output(0, Stream::err) == std::string("line\n\0x", 7));
}

TEST_CASE(
    "without credit no output comes and beats go on; with credit exactly as much as granted") {
  AgentProcess agent({.silence = 500ms});
  agent.greet();
  agent.send(writes_a_mebibyte(agent, 0));
  agent.expect<WorkerStarted>();
  let_beats_pass(agent, 5);
  CHECK(agent.count<Output>() == 0);
  CHECK(agent.count<WorkerEnded>() == 0);

  size_t got = 0;
  const auto take = [&] { got += agent.take_output(0, Stream::out).size(); };
  const auto grant_and_expect = [&](uint64_t bytes) {
    const size_t before = got;
    agent.send(Credit{1, 0, Stream::out, bytes});
    CHECK(agent.pump_until([&] {
      take();
      return got >= before + bytes;
    }));
    let_beats_pass(agent, 3);
    take();
    CHECK(got == before + bytes);
  };
  grant_and_expect(1);
  grant_and_expect(100'000);
  grant_and_expect(kMebibyte - 100'001);
  CHECK(agent.expect<WorkerEnded>().exit_code == 0);
  agent.send(Credit{1, 0, Stream::out, 1});
  agent.expect<OutputEnd>([](const OutputEnd& e) { return e.stream == Stream::out; });
  take();
  CHECK(got == kMebibyte);
}

TEST_CASE("a stop does not wait for credit, and the output that was left comes later") {
  AgentProcess agent;
  agent.greet();
  StartAttempt start = agent.shell("printf abcdef; printf ghi >&2; exec sleep 1000");
  start.credit = 2;
  agent.send(start);
  CHECK(agent.pump_until([&] { return agent.count<Output>() == 2; }));
  agent.send(StopAttempt{1, 0, false, 0, ""});
  agent.expect<AttemptStopped>();
  CHECK(agent.take_output(0, Stream::out) == "ab");
  CHECK(agent.count<OutputEnd>() == 0);

  agent.send(agent.shell("printf next", 1, 2));
  agent.expect<WorkerEnded>([](const WorkerEnded& e) { return e.attempt == 2; });
  agent.send(Credit{1, 0, Stream::out, 3});
  agent.send(Credit{1, 0, Stream::out, 3});
  agent.send(Credit{1, 0, Stream::err, 1});
  agent.expect<OutputEnd>(
      [](const OutputEnd& e) { return e.attempt == 1 && e.stream == Stream::out; });
  agent.expect<OutputEnd>(
      [](const OutputEnd& e) { return e.attempt == 1 && e.stream == Stream::err; });
  CHECK(agent.take_output(0, Stream::out, 1) == "cdef");
  CHECK(agent.take_output(0, Stream::err, 1) == "ghi");
  CHECK(agent.take_output(0, Stream::out, 2) == "next");
}

TEST_CASE(
    "what nobody takes of earlier attempts is dropped beyond 64 MiB, oldest first, and ended") {
  AgentProcess agent;
  agent.greet();
  constexpr uint32_t kRanks = 8, kAttempts = 5;  // 16 MiB each
  for (uint32_t attempt = 1; attempt <= kAttempts; ++attempt) {
    StartAttempt start = agent.attempt({HVD_TEST_WORKER, "fill"}, kRanks, attempt);
    start.credit = 0;
    agent.send(start);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      agent.expect<WorkerEnded>([&](const WorkerEnded& e) { return e.attempt == attempt; });
    }
    agent.send(StopAttempt{attempt, 0, false, 0, ""});
    agent.expect<AttemptStopped>();
    CHECK(agent.count<OutputEnd>() == (attempt < kAttempts ? 0 : 2 * kRanks));
  }
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    for (const Stream stream : {Stream::out, Stream::err}) {
      agent.expect<OutputEnd>([&](const OutputEnd& e) {
        return e.attempt == 1 && e.rank == rank && e.stream == stream;
      });
    }
  }
  CHECK(agent.expect<AgentNotice>().text ==
        "output of earlier attempts was dropped: nobody took it");
  // Credit that was under way is nothing; the rest is there.
  agent.send(Credit{1, 0, Stream::out, kMebibyte});
  agent.send(Credit{2, 0, Stream::out, kMebibyte});
  CHECK(agent.expect<OutputEnd>().attempt == 2);
  CHECK(agent.take_output(0, Stream::out, 1).empty());
  CHECK(agent.take_output(0, Stream::out, 2) == std::string(kMebibyte, 'x'));
}

TEST_CASE("a launcher that does not read slows workers, and the agent stays within its bounds") {
  AgentProcess agent({.silence = 60s});
  agent.greet();
  StartAttempt start = agent.shell("exec cat /dev/zero", 4);
  start.credit = 1u << 30;
  agent.send(start);
  // Nothing reads for a while: the wire fills up.
  const std::string status = "/proc/" + std::to_string(agent.agent()) + "/status";
  const auto resident_kib = [&] {
    const std::string text = *read_file(status, 1u << 16);
    return std::atol(text.c_str() + text.find("VmRSS:") + 6);
  };
  const long before = resident_kib();
  long most = 0;
  const Time until = now() + 1s;
  wait_until([&] {
    most = std::max(most, resident_kib());
    return now() >= until;
  });
  CHECK(most - before < 64 * 1024);
  agent.send(StopAttempt{1, 0, false, 0, ""});
  agent.expect<AttemptStopped>();
}

TEST_CASE("a process outside the tree that holds the pipe does not hold up the stop") {
  // What a daemon started at a worker's request would do: the pipe is open in this test.
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell("echo $$; exec sleep 1000"));
  std::string text;
  REQUIRE(agent.pump_until([&] {
    text += agent.take_output(0, Stream::out);
    return text.find('\n') != std::string::npos;
  }));
  const std::string path = "/proc/" + std::to_string(std::atoi(text.c_str())) + "/fd/1";
  FILE* held = std::fopen(path.c_str(), "w");
  REQUIRE(held != nullptr);
  agent.send(StopAttempt{1, 0, false, 0, ""});
  agent.expect<AttemptStopped>();
  agent.expect<OutputEnd>([](const OutputEnd& e) { return e.stream == Stream::out; });
  std::fclose(held);
}
