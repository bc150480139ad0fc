// How agent and launcher meet and part.
#include <doctest/doctest.h>
#include <sched.h>
#include <unistd.h>

#include <csignal>

#include "tests/agent/agent_process.h"

using namespace hvd;
using namespace hvd::test;

namespace {

// Runs the agent with these arguments, both standard streams closed off; exit code and stderr.
std::pair<int, std::string> run_alone(std::vector<std::string> arguments) {
  Pipe err = std::move(*make_pipe());
  SpawnSpec spec;
  spec.program = HVD_TEST_AGENT;
  spec.argv = std::move(arguments);
  spec.argv.insert(spec.argv.begin(), "hvdlaunch");
  spec.err = err.write.get();
  SpawnResult result = spawn(spec);
  err.write.reset();
  const Ending ending = reap(std::get<Child>(result));
  char text[4096];
  const ssize_t n = read(err.read.get(), text, sizeof text);
  return {ending.exit_code, std::string(text, n > 0 ? static_cast<size_t>(n) : 0)};
}

}  // namespace

TEST_CASE("both say hello, and the agent tells what its host is") {
  for (const bool pipes : {false, true}) {
    AgentProcess agent({.pipes = pipes});
    const AgentHello hello = agent.greet();
    CHECK(agent.greeting.size() == kAgentGreeting.size() + 40);
    CHECK(agent.greeting.find_first_not_of("0123456789abcdef", kAgentGreeting.size()) ==
          std::string::npos);
    CHECK(hello.protocol == kProtocol);
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    CHECK(hello.hostname == name);
    CHECK(hello.boot_id.size() == 36);
    cpu_set_t cores;
    sched_getaffinity(0, sizeof cores, &cores);
    CHECK(hello.cores == static_cast<uint32_t>(CPU_COUNT(&cores)));
    CHECK(hello.reserved_port > 0);
    agent.send(Goodbye{});
    CHECK(agent.wait_end() == 0);
    CHECK(agent.lock_is_free());
    CHECK(agent.read_errors().empty());
  }
}

TEST_CASE("the build id is that of the agent's own file") {
  AgentProcess agent;
  agent.greet();
  Pipe out = std::move(*make_pipe());
  SpawnSpec spec;
  spec.program = "/usr/bin/readelf";
  spec.argv = {"readelf", "-n", HVD_TEST_AGENT};
  spec.out = out.write.get();
  SpawnResult result = spawn(spec);
  REQUIRE(std::holds_alternative<Child>(result));
  reap(std::get<Child>(result));
  char text[4096];
  const ssize_t n = read(out.read.get(), text, sizeof text);
  REQUIRE(n > 0);
  const std::string id = agent.greeting.substr(kAgentGreeting.size());
  CHECK(std::string(text, static_cast<size_t>(n)).find("Build ID: " + id) != std::string::npos);
}

TEST_CASE("a launcher of another protocol is told both numbers") {
  AgentProcess agent;
  LauncherHello hello;
  hello.protocol = kProtocol + 1;
  agent.send(hello);
  CHECK(agent.wait_end() == 1);
  const std::string errors = agent.read_errors();
  CHECK(errors.find("speaks protocol " + std::to_string(kProtocol + 1)) != std::string::npos);
  CHECK(errors.find("this agent speaks " + std::to_string(kProtocol)) != std::string::npos);
}

TEST_CASE("a launcher that does not begin with its hello, or sends garbage, is left") {
  for (const std::string& bytes : {to_frame(ToAgent(Echo{1})), frame("\x7fxyz"),
                                   std::string("\xff\xff\xff\xff....", 8), frame("")}) {
    AgentProcess agent;
    agent.send_raw(bytes);
    CHECK(agent.wait_end() == 1);
    CHECK(agent.read_errors().find("the launcher") != std::string::npos);
  }
}

TEST_CASE("wrong use ends with 2 and a sentence") {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"--job", "x"},
                                             {"--job", "x", "--host", "-1"},
                                             {"--job", "a/b", "--host", "0"},
                                             {"--job", std::string(65, 'x'), "--host", "0"},
                                             {"--job", "x", "--host", "0", "--more"}}) {
    const auto [code, errors] = run_alone(arguments);
    CHECK(code == 2);
    CHECK(errors.find("started by hvdlaunch") != std::string::npos);
  }
  const auto [code, errors] = run_alone({"--job", "x", "--host", "0"});
  CHECK(code == 2);
  CHECK(errors.find("must be pipes or sockets") != std::string::npos);
}

TEST_CASE("a launcher that hangs up before it spoke leaves nothing") {
  AgentProcess agent;
  REQUIRE(agent.pump_until([&] { return !agent.greeting.empty(); }));
  agent.hang_up();
  CHECK(agent.wait_end() == 1);
  CHECK(agent.lock_is_free());
}

TEST_CASE("Ctrl-C, a closing session and TERM do not end the agent") {
  AgentProcess agent;
  agent.greet();
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTSTP}) {
    kill(agent.agent(), signal);
    kill(agent.keeper(), signal);
  }
  CHECK(getsid(agent.keeper()) == agent.keeper());
  CHECK(getsid(agent.agent()) == agent.keeper());
  CHECK(getpgid(agent.agent()) == agent.agent());
  const size_t beats = agent.count<Beat>();
  CHECK(agent.pump_until([&] { return agent.count<Beat>() > beats + 1; }));
  CHECK_FALSE(agent.ended());
}

TEST_CASE("beats come at a tenth of the silence") {
  AgentProcess agent({.silence = 500ms});
  agent.greet();
  const Beat first = agent.expect<Beat>();
  Beat last = first;
  for (int i = 0; i < 10; ++i) {
    const Beat beat = agent.expect<Beat>();
    CHECK(beat.agent_time > last.agent_time);
    last = beat;
  }
  CHECK(Duration(last.agent_time - first.agent_time) >= 490ms);
}

TEST_CASE("a second agent of the same job and host waits until the first one's tree is dead") {
  AgentProcess first({.failure_grace = 500ms});
  first.greet();
  first.send(first.shell("trap '' TERM; echo up; while :; do sleep 1; done"));
  REQUIRE(first.pump_until([&] { return !first.take_output(0, Stream::out).empty(); }));
  AgentProcess second({.job = first.job()});
  first.hang_up();
  bool greeted_early = false;
  CHECK(second.pump_until([&] {
    greeted_early = !second.greeting.empty() && !tree_of(first.job()).empty();
    return greeted_early || !second.greeting.empty();
  }));
  CHECK_FALSE(greeted_early);
  CHECK(first.wait_end() == 1);
  second.greet();
}

TEST_CASE("an agent that waits for an earlier one ends when its own launcher hangs up") {
  AgentProcess first;
  first.greet();
  AgentProcess second({.job = first.job()});
  second.hang_up();
  CHECK(second.wait_end() == 1);
  CHECK(second.read_errors().find("an earlier agent") != std::string::npos);
  CHECK_FALSE(first.ended());
}
