// Standard input of a rank against the credit that the agent gives back.
#include <doctest/doctest.h>

#include "tests/agent/agent_process.h"

using namespace hvd;
using namespace hvd::test;

namespace {

StartAttempt with_input(StartAttempt start, uint32_t rank) {
  start.input = true;
  start.input_rank = rank;
  start.credit = 1u << 30;
  return start;
}

// Sends all of it, never more than the window ahead of what the rank took.
uint64_t send_input(AgentProcess& agent, const std::string& bytes) {
  uint64_t sent = 0, taken = 0;
  while (sent < bytes.size()) {
    while (sent < bytes.size() && sent - taken < kInputWindow) {
      const std::string piece =
          bytes.substr(sent, std::min<uint64_t>(10'007, kInputWindow - (sent - taken)));
      agent.send(Input{1, 1, false, piece});
      sent += piece.size();
    }
    if (sent < bytes.size()) taken += agent.expect<InputCredit>().bytes;
  }
  agent.send(Input{1, 1, true, ""});
  return taken;
}

}  // namespace

TEST_CASE("d6: a rank reads its input to the byte, and its end") {
  AgentProcess agent;
  agent.greet();
  agent.send(with_input(agent.shell("if [ $HVD_RANK = 1 ]; then sleep 0.2; fi; exec cat", 2), 1));
  std::string bytes;
  for (int i = 0; i < 200'000; ++i) bytes += std::to_string(i);
  uint64_t taken = send_input(agent, bytes);
  agent.expect<WorkerEnded>([](const WorkerEnded& e) { return e.rank == 1 && e.exit_code == 0; });
  agent.expect<OutputEnd>(
      [](const OutputEnd& e) { return e.rank == 1 && e.stream == Stream::out; });
  CHECK(agent.take_output(1, Stream::out) == bytes);
  while (agent.count<InputCredit>() > 0) taken += agent.expect<InputCredit>().bytes;
  CHECK(taken == bytes.size());
  CHECK(agent.take_output(0, Stream::out).empty());
}

TEST_CASE("d6: what a rank does not read waits within the window, and goes with it") {
  AgentProcess agent;
  agent.greet();
  agent.send(with_input(agent.shell("head -c 3; exec <&-; exec sleep 1000", 2), 1));
  agent.send(Input{1, 1, false, std::string(kInputWindow, 'x')});
  const auto first = agent.expect<InputCredit>();
  CHECK(first.rank == 1);
  CHECK(first.bytes < kInputWindow);
  std::string out;
  CHECK(agent.pump_until([&] { return (out += agent.take_output(1, Stream::out)) == "xxx"; }));
  agent.send(Input{1, 0, false, "for a rank that has none"});
  agent.send(Input{2, 1, false, "for another attempt"});
  agent.send(Input{1, 1, true, "more"});
  agent.send(StopAttempt{1, 0, false, 0, ""});
  agent.expect<AttemptStopped>();
}
