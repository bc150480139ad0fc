// Workers from their start to their end.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <sstream>

#include "tests/agent/agent_process.h"

using namespace hvd;
using namespace hvd::test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Starts, waits for the end of rank 0, and gives it with all its output.
struct Ran {
  WorkerEnded ended;
  std::string out, err;
};
Ran run(AgentProcess& agent, const StartAttempt& start) {
  agent.send(start);
  const auto is_end_of = [&](Stream stream) {
    return [&start, stream](const OutputEnd& e) {
      return e.attempt == start.attempt && e.stream == stream;
    };
  };
  Ran ran;
  ran.ended =
      agent.expect<WorkerEnded>([&](const WorkerEnded& e) { return e.attempt == start.attempt; });
  agent.expect<OutputEnd>(is_end_of(Stream::out));
  agent.expect<OutputEnd>(is_end_of(Stream::err));
  ran.out = agent.take_output(0, Stream::out, start.attempt);
  ran.err = agent.take_output(0, Stream::err, start.attempt);
  return ran;
}

StopAttempt stop_after(Duration grace, uint32_t attempt = 1) {
  StopAttempt stop;
  stop.attempt = attempt;
  stop.grace_ns = static_cast<uint64_t>(grace.count());
  return stop;
}

void wait_for(AgentProcess& agent, const std::string& word, uint32_t rank = 0) {
  std::string text;
  const bool came = agent.pump_until([&] {
    text += agent.take_output(rank, Stream::out);
    return has(text, word);
  });
  INFO(text);
  REQUIRE(came);
}

}  // namespace

TEST_CASE("a worker runs in its own session, in its directory, with nothing on its input") {
  AgentProcess agent;
  agent.greet();
  TestFolder folder;
  StartAttempt start = agent.shell(
      "pwd; cat; echo sid=$(ps -o sid= -p $$) pid=$$; ls /proc/self/fd | tr '\\n' ' '; echo err "
      ">&2");
  start.workdir = folder.path();
  const Ran ran = run(agent, start);
  const WorkerStarted started = agent.expect<WorkerStarted>();
  CHECK(ran.ended.exit_code == 0);
  CHECK(ran.ended.signal == 0);
  CHECK(ran.ended.not_started.empty());
  CHECK_FALSE(ran.ended.left_early);
  CHECK(ran.ended.last_lines == "err\n");
  CHECK(ran.err == "err\n");
  CHECK(has(ran.out, folder.path() + "\n"));
  CHECK(has(ran.out, "pid=" + std::to_string(started.pid) + "\n"));
  CHECK(has(ran.out, std::to_string(started.pid) + " pid="));
  // 3 is ls's own, on the folder it lists.
  CHECK(has(ran.out, "\n0 1 2 3 "));
}

TEST_CASE("a worker gets the composed environment and nothing of the agent's own") {
  AgentProcess agent(
      {.environment = {"PATH=/usr/bin:/bin", "HOME=/far", "SECRET_OF_LOGIN=1", "RANK=9"}});
  const AgentHello hello = agent.greet();
  StartAttempt start = agent.attempt({"env"}, 2);
  start.forwarded = {{"FROM_LAUNCHER", "a b\nc"}, {"HOME", "/near"}};
  start.set = {{"SET", "x"}};
  start.master_port = hello.reserved_port;
  agent.send(start);
  for (uint32_t rank : {0u, 1u}) {
    agent.expect<WorkerEnded>([&](const WorkerEnded& e) { return e.rank == rank; });
    agent.expect<OutputEnd>(
        [&](const OutputEnd& e) { return e.rank == rank && e.stream == Stream::out; });
    const std::string env = "\n" + agent.take_output(rank, Stream::out);
    CHECK(has(env, "\nFROM_LAUNCHER=a b\nc\n"));
    CHECK(has(env, "\nHOME=/far\n"));
    CHECK(has(env, "\nSET=x\n"));
    CHECK(has(env, "\nHVD_HOST=node-a\n"));
    CHECK(has(env, "\nRANK=" + std::to_string(rank) + "\n"));
    CHECK(has(env, "\nMASTER_PORT=" + std::to_string(hello.reserved_port) + "\n"));
    CHECK_FALSE(has(env, "SECRET_OF_LOGIN"));
  }
}

TEST_CASE("a program that cannot be run is told with the reason") {
  AgentProcess agent;
  agent.greet();
  TestFolder folder;
  const std::string plain = folder / "plain";
  REQUIRE(replace_file(plain, "text", 0644).ok());
  REQUIRE(replace_file(folder / "job.py", "pass", 0644).ok());
  REQUIRE(replace_file(folder / "run.py", "pass", 0755).ok());
  struct {
    std::vector<std::string> argv;
    std::string workdir;
    int code;
    std::string text;
  } cases[] = {
      {{"no-such-program"}, "/", 127, "'no-such-program' was not found in PATH"},
      {{"plain"}, folder.path(), 127, "the file of that name in " + folder.path() + " is not exec"},
      {{"job.py"}, folder.path(), 127, "'job.py' was not found in PATH; write python3 job.py"},
      {{"run.py"},
       folder.path(),
       127,
       "in PATH; for the file in " + folder.path() + " write ./run"},
      {{"./job.py"}, folder.path(), 126, "Permission denied; write python3 ./job.py"},
      {{"/no/such/program"}, "/", 127, "/no/such/program"},
      {{plain}, "/", 126, plain + ": cannot run it: Permission denied"},
      {{"/usr"}, "/", 126, "Is a directory"},
      {{"true"}, "/no/such/folder", 126, "cannot enter the directory /no/such/folder"},
      {{"true"}, plain, 126, plain + ": it is not one"},
      {{}, "/", 127, "no program"},
  };
  uint32_t number = 0;
  for (const auto& one : cases) {
    StartAttempt start = agent.attempt(one.argv, 1, ++number);
    start.workdir = one.workdir;
    const Ran ran = run(agent, start);
    CHECK(ran.ended.exit_code == one.code);
    CHECK_MESSAGE(has(ran.ended.not_started, one.text), ran.ended.not_started);
    agent.send(stop_after(0s, number));
    agent.expect<AttemptStopped>();
  }
  CHECK(agent.count<WorkerStarted>() == 0);
}

TEST_CASE("exit codes, signals and the last words are told as they are") {
  AgentProcess agent;
  agent.greet();
  const Ran exited = run(agent, agent.shell("seq 1 1000 >&2; printf end >&2; exit 77"));
  CHECK(exited.ended.exit_code == 77);
  CHECK(exited.ended.last_lines.size() == 2048);
  CHECK(exited.ended.last_lines.substr(2039) == "\n1000\nend");
  agent.send(stop_after(0s));
  agent.expect<AttemptStopped>();
  const Ran killed = run(agent, agent.shell("echo dying >&2; kill -SEGV $$", 1, 2));
  CHECK(killed.ended.signal == SIGSEGV);
  CHECK(killed.ended.last_lines == "dying\n");
  CHECK(killed.ended.attempt == 2);
}

TEST_CASE("last words are told even when no credit was left to show them") {
  AgentProcess agent;
  agent.greet();
  StartAttempt start = agent.shell("echo why >&2; exit 3");
  start.credit = 0;
  agent.send(start);
  CHECK(agent.expect<WorkerEnded>().last_lines == "why\n");
  CHECK(agent.count<Output>() == 0);
  agent.send(Credit{1, 0, Stream::err, 100});
  agent.expect<OutputEnd>([](const OutputEnd& e) { return e.stream == Stream::err; });
  CHECK(agent.take_output(0, Stream::err) == "why\n");
}

TEST_CASE("TERM is enough for a worker that ends on it") {
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell("trap 'echo saved; exit 5' TERM; echo up; while :; do sleep 0.01; done"));
  wait_for(agent, "up");
  const Time before = now();
  agent.send(stop_after(60s));
  CHECK(agent.expect<WorkerEnded>().exit_code == 5);
  agent.expect<AttemptStopped>();
  CHECK(now() - before < 10s);
  CHECK(has(agent.take_output(0, Stream::out), "saved"));
  CHECK(tree_of(agent.job()).empty());
}

TEST_CASE("a worker that ignores TERM is killed at the end of the grace, not before") {
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell("trap '' TERM; echo up; while :; do sleep 1; done"));
  wait_for(agent, "up");
  const Time before = now();
  agent.send(stop_after(600ms));
  CHECK(agent.expect<WorkerEnded>().signal == SIGKILL);
  CHECK(now() - before >= 600ms);
  agent.expect<AttemptStopped>();
  CHECK(now() - before < 5s);
  CHECK(tree_of(agent.job()).empty());
}

TEST_CASE("a repeated stop shortens the grace and never lengthens it") {
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell("trap '' TERM; echo up; while :; do sleep 1; done"));
  wait_for(agent, "up");
  agent.send(stop_after(1000s));
  agent.send(stop_after(0s));
  agent.send(stop_after(1000s));
  CHECK(agent.expect<WorkerEnded>().signal == SIGKILL);
  agent.expect<AttemptStopped>();
}

TEST_CASE("a stopped worker can act on TERM") {
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell("trap 'exit 6' TERM; echo up; while :; do sleep 0.01; done"));
  wait_for(agent, "up");
  kill(agent.expect<WorkerStarted>().pid, SIGSTOP);
  agent.send(stop_after(60s));
  CHECK(agent.expect<WorkerEnded>().exit_code == 6);
}

TEST_CASE("the end of a main process leaves its children alone until the stop") {
  AgentProcess agent;
  agent.greet();
  agent.send(
      agent.shell("setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 &' & sleep 0.1; exit 4"));
  CHECK(agent.expect<WorkerEnded>().exit_code == 4);
  CHECK(wait_until([&] { return tree_of(agent.job()).size() == 2; }));
  agent.send(stop_after(60s));
  agent.expect<AttemptStopped>();
  CHECK(tree_of(agent.job()).empty());
}

TEST_CASE("orphans that end are reaped while the attempt runs") {
  AgentProcess agent({.silence = 500ms});
  agent.greet();
  agent.send(
      agent.shell("for i in 1 2 3 4 5; do sh -c 'sleep 0.05 &'; done; echo up; exec sleep 1000"));
  wait_for(agent, "up");
  const std::string children = "/proc/" + std::to_string(agent.agent()) + "/task/" +
                               std::to_string(agent.agent()) + "/children";
  const pid_t worker = agent.expect<WorkerStarted>().pid;
  CHECK(agent.pump_until([&] {
    const auto text = read_file(children, 4096);
    return text.ok() && *text == std::to_string(worker) + " ";
  }));
}

TEST_CASE("attempts follow one another, with a fresh port, and old news is dropped") {
  AgentProcess agent;
  const AgentHello hello = agent.greet();
  agent.send(agent.shell("echo one; exec sleep 1000", 2, 4));
  agent.expect<WorkerStarted>();
  agent.send(agent.shell("echo other", 1, 5));
  CHECK(has(agent.expect<AgentNotice>().text, "attempt 4 is not stopped"));
  agent.send(stop_after(0s, 3));
  agent.send(stop_after(0s, 4));
  const AttemptStopped stopped = agent.expect<AttemptStopped>();
  CHECK(stopped.attempt == 4);
  CHECK(stopped.reserved_port > 0);
  CHECK(stopped.reserved_port != hello.reserved_port);
  agent.send(agent.shell("echo stale", 1, 4));
  agent.send(agent.shell("echo stale", 1, 3));
  const Ran ran = run(agent, agent.shell("echo two", 1, 6));
  CHECK(ran.out == "two\n");
  CHECK(ran.ended.attempt == 6);
  CHECK(agent.expect<Beat>([](const Beat& b) { return b.attempt == 6; }).attempt == 6);
}

TEST_CASE("the port kept for MASTER_PORT is given to a worker that listens on it") {
  AgentProcess agent;
  const AgentHello hello = agent.greet();
  StartAttempt start = agent.attempt({HVD_TEST_WORKER, "listen", "exit", "0"});
  start.master_port = hello.reserved_port;
  CHECK(run(agent, start).out == "listening\n");
}

TEST_CASE("Goodbye stops what runs and ends with 0") {
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell("trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done"));
  wait_for(agent, "up");
  agent.send(Goodbye{static_cast<uint64_t>(Duration(60s).count())});
  agent.expect<AttemptStopped>();
  CHECK(agent.wait_end() == 0);
  CHECK(tree_of(agent.job()).empty());
  CHECK(agent.lock_is_free());
}

TEST_CASE("many workers start and stop together") {
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell("echo up; exec sleep 1000", 32));
  for (uint32_t rank = 0; rank < 32; ++rank) wait_for(agent, "up", rank);
  agent.send(stop_after(60s));
  agent.expect<AttemptStopped>();
  size_t ended = 0;
  while (agent.count<WorkerEnded>() > 0) {
    CHECK(agent.expect<WorkerEnded>().signal == SIGTERM);
    ++ended;
  }
  CHECK(ended == 32);
}

TEST_CASE("TERM at the agent is told, once, and stops nothing") {
  AgentProcess agent;
  agent.greet();
  agent.send(agent.shell("echo here; sleep 1000"));
  agent.expect<WorkerStarted>();
  kill(agent.agent(), SIGTERM);
  CHECK(agent.expect<Leaving>().reason.find("SIGTERM") != std::string::npos);
  kill(agent.agent(), SIGTERM);
  const size_t beats = agent.count<Beat>();
  CHECK(agent.pump_until([&] { return agent.count<Beat>() > beats + 1; }));
  CHECK(agent.count<Leaving>() == 0);
  CHECK(agent.count<WorkerEnded>() == 0);
  // The worker's own TERM is none of the agent's: it is not blocked there.
  agent.send(StopAttempt{1, 20'000'000'000, false, 0, "", false});
  CHECK(agent.expect<WorkerEnded>().signal == SIGTERM);
}
