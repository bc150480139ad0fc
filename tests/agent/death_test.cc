// Whatever ends first, nothing of the job is left: no process however it hides, no folder, no lock.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "tests/agent/agent_process.h"

using namespace hvd;
using namespace hvd::test;

namespace {

// Four ways to hide from a killer: a child, its own session, an orphan, an orphan in its own
// session that ignores TERM. The main process ignores TERM as well.
constexpr const char* kHidingTree =
    "trap '' TERM; sleep 1000 & setsid sleep 1000 & sh -c 'sleep 1000 &'; "
    "setsid sh -c 'setsid sleep 1000 &'; echo \"folder ${HVD_AGENT_SOCKET%/agent}\"; "
    "while :; do sleep 1; done";
constexpr size_t kHiding = 5;

// The job's folder of sockets, once the whole tree is there.
std::string start_hiding_tree(AgentProcess& agent) {
  agent.greet();
  agent.send(agent.shell(kHidingTree));
  std::string text;
  REQUIRE(agent.pump_until([&] {
    text += agent.take_output(0, Stream::out);
    return text.find('\n') != std::string::npos && tree_of(agent.job()).size() >= kHiding;
  }));
  const std::string folder = text.substr(7, text.find('\n') - 7);
  REQUIRE(exists(folder + "/agent"));
  return folder;
}

void check_nothing_left(AgentProcess& agent, const std::string& folder) {
  CHECK(tree_of(agent.job()).empty());
  CHECK_FALSE(exists(folder));
  CHECK(agent.lock_is_free());
}

}  // namespace

TEST_CASE("after the launcher hung up, and after TERM and the grace") {
  for (const bool pipes : {false, true}) {
    // No lease ends before this test does.
    AgentProcess agent({.silence = 1h, .failure_grace = 300ms, .pipes = pipes});
    const std::string folder = start_hiding_tree(agent);
    const Time before = now();
    agent.hang_up();
    CHECK(agent.wait_end() == 1);
    CHECK(now() - before >= 300ms);
    check_nothing_left(agent, folder);
  }
}

TEST_CASE("after kill -9 of the agent") {
  AgentProcess agent;
  const std::string folder = start_hiding_tree(agent);
  kill(agent.agent(), SIGKILL);
  CHECK(agent.wait_end() == 1);
  check_nothing_left(agent, folder);
}

TEST_CASE("after kill -9 of the keeper") {
  AgentProcess agent;
  const std::string folder = start_hiding_tree(agent);
  kill(agent.keeper(), SIGKILL);
  CHECK(agent.wait_end() == 128 + SIGKILL);
  CHECK(tree_is_dead(agent.job(), 5s));
  CHECK(wait_until([&] { return !exists(folder) && agent.lock_is_free(); }, 5s));
}

TEST_CASE("after the agent was stopped past the lease") {
  AgentProcess agent({.silence = 500ms});
  const std::string folder = start_hiding_tree(agent);
  kill(agent.agent(), SIGSTOP);
  const Time stopped = now();
  CHECK(agent.wait_end() == 1);
  // 0.6 of the silence, and some patience with a busy machine.
  CHECK(now() - stopped < 5s);
  CHECK(agent.read_errors().find("the lease is over") != std::string::npos);
  check_nothing_left(agent, folder);
}

TEST_CASE("a keeper that was stopped for longer than a lease hears what came meanwhile") {
  AgentProcess agent({.silence = 500ms});
  start_hiding_tree(agent);
  kill(agent.keeper(), SIGSTOP);
  const Time until = now() + 1s;
  agent.pump_until([&] { return now() >= until; });
  kill(agent.keeper(), SIGCONT);
  const Time more = now() + 500ms;
  CHECK_FALSE(agent.pump_until([&] { return agent.ended() && now() < more; }, 500ms));
  CHECK(tree_of(agent.job()).size() >= kHiding);
}

TEST_CASE("suspended ranks stand still beyond any lease, go on, and can be stopped meanwhile") {
  AgentProcess agent({.silence = 500ms, .failure_grace = 0ms});
  const std::string folder = start_hiding_tree(agent);
  std::string states;  // of the last look, for the message
  const auto standing = [&] {
    size_t count = 0;
    states.clear();
    for (const pid_t pid : tree_of(agent.job())) {
      const Result<std::string> stat = read_file("/proc/" + std::to_string(pid) + "/stat", 4096);
      states += stat ? stat->substr(0, stat->find(')') + 10) + "\n" : "gone\n";
      // D: the parent of a vfork whose child was stopped.
      const bool still = stat && (stat->find(") T ") != std::string::npos ||
                                  stat->find(") D ") != std::string::npos);
      count += still ? 1 : 0;
    }
    return count;
  };
  agent.send(Suspend{});
  agent.expect<Suspended>();
  CHECK_MESSAGE(wait_until([&] { return standing() == tree_of(agent.job()).size(); }), states);
  agent.echo = false;
  const Time until = now() + 1s;  // twice the silence
  agent.pump_until([&] { return now() >= until; });
  CHECK_MESSAGE(standing() >= kHiding, states);
  agent.echo = true;
  agent.send(Resume{});
  CHECK(agent.pump_until([&] { return standing() == 0; }));
  agent.send(Suspend{});
  agent.expect<Suspended>();
  agent.hang_up();
  CHECK(agent.wait_end() == 1);
  check_nothing_left(agent, folder);
}

TEST_CASE("after the launcher fell silent") {
  AgentProcess agent({.silence = 500ms});
  const std::string folder = start_hiding_tree(agent);
  agent.echo = false;
  CHECK(agent.wait_end() == 1);
  CHECK(agent.read_errors().find("lease") != std::string::npos);
  check_nothing_left(agent, folder);
}

TEST_CASE("the launcher's channel stays open until nothing is left") {
  AgentProcess agent;
  const std::string folder = start_hiding_tree(agent);
  kill(agent.agent(), SIGKILL);
  REQUIRE(agent.pump_until([&] { return agent.channel_closed(); }));
  CHECK(tree_of(agent.job()).empty());
  CHECK_FALSE(exists(folder));
}

TEST_CASE("a process that moves on by forking is caught") {
  AgentProcess agent;
  agent.greet();
  agent.send(
      agent.shell("HOP='sleep 0.002; setsid sh -c \"$HOP\" & exit'; export HOP; "
                  "setsid sh -c \"$HOP\" & echo up; exec sleep 1000"));
  // The main process and, at most moments, two that hop.
  REQUIRE(agent.pump_until([&] { return tree_of(agent.job()).size() > 2; }));
  agent.send(StopAttempt{1, 0, false, 0, ""});
  agent.expect<AttemptStopped>();
  CHECK(tree_of(agent.job()).empty());
}

TEST_CASE("a runtime folder of the login is used for sockets, and left clean") {
  TestFolder runtime;
  AgentProcess agent({.environment = {"PATH=/usr/bin:/bin", "XDG_RUNTIME_DIR=" + runtime.path()}});
  const std::string folder = start_hiding_tree(agent);
  CHECK(folder.rfind(runtime.path() + "/", 0) == 0);
  agent.send(Goodbye{});
  CHECK(agent.wait_end() == 0);
  check_nothing_left(agent, folder);
}

TEST_CASE("a runtime folder that is of no use is passed over") {
  for (const std::string& runtime :
       {std::string("/no/such/folder"), std::string("relative"), "/tmp/" + std::string(200, 'x')}) {
    AgentProcess agent({.environment = {"PATH=/usr/bin:/bin", "XDG_RUNTIME_DIR=" + runtime}});
    const std::string folder = start_hiding_tree(agent);
    CHECK(folder.rfind(runtime, 0) != 0);
    struct stat st;
    REQUIRE(stat(folder.c_str(), &st) == 0);
    CHECK((st.st_mode & 0777) == 0700);
  }
}
