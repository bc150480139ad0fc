// Launchers that come and go, as the failure policy sees them: a job of fake hosts whose agents
// answer to a launcher that takes over. No process, no clock.
#include <doctest/doctest.h>

#include <csignal>

#include "supervisor/policy.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// Hosts with two ranks each, and spares; an earlier launcher had started attempt 1.
struct Scene {
  explicit Scene(uint32_t hosts, uint32_t spares = 0) {
    for (uint32_t i = 0; i < hosts + spares; ++i) {
      Host host;
      host.name = "h" + std::to_string(i + 1);
      host.slots = 2;
      host.spare = i >= hosts;
      job.hosts.push_back(host);
      memory.ledger.push_back({});
      if (i < hosts) memory.hosts.push_back(i);
    }
    job.id = "job";
    job.size = 2 * hosts;
    job.argv = {"train"};
    job.survive = 60s;
    job.max_restarts = 3;
    memory.attempt = memory.attempts_started = 1;
  }

  void take_over() {
    policy.emplace(job, *place(job.hosts, job.size), 1);
    take(policy->take_over(memory, elapsed, at));
  }
  void take(Actions actions) {
    for (Action& action : actions) all.push_back(std::move(action));
  }
  void event(const Event& e) { take(policy->step(e, at)); }
  void say(uint32_t host, FromAgent m) { event(AgentSaid{host, std::move(m)}); }
  // The agent holds the ranks that host `as` was given.
  void up(uint32_t host, HeldState state, uint32_t attempt = 1, std::optional<uint32_t> as = {}) {
    Held held;
    held.state = state;
    if (state != HeldState::none) {
      held.start.attempt = attempt;
      held.start.size = job.size;
      const Placement placement = *place(job.hosts, job.size);
      held.start.places = placement[as.value_or(host)].places;
    }
    AgentHello hello;
    hello.boot_id = "boot";
    hello.network = 1;
    event(HostUp{host, hello, "", "", held});
    if (beats) beat(host);
  }
  // Behind the news that it has to tell.
  void beat(uint32_t host) { say(host, Beat{1, 1, {}}); }
  void down(uint32_t host, HostEnd end) {
    event(HostDown{host, end, job.hosts[host].name + " is down"});
  }
  void ended(uint32_t rank, int code, uint32_t attempt = 1) {
    WorkerEnded m;
    m.attempt = attempt;
    m.rank = rank;
    m.exit_code = code;
    say(rank / 2, m);
  }
  void pass(Duration d) {
    at += d;
    if (policy->next_deadline() && *policy->next_deadline() <= at) event(Tick{});
  }

  template <class A>
  std::vector<A> of() const {
    std::vector<A> found;
    for (const Action& action : all) {
      if (const A* one = std::get_if<A>(&action)) found.push_back(*one);
    }
    return found;
  }
  template <class M>
  std::vector<std::pair<uint32_t, M>> sent() const {
    std::vector<std::pair<uint32_t, M>> found;
    for (const Send& send : of<Send>()) {
      if (const M* m = std::get_if<M>(&send.message)) found.emplace_back(send.host, *m);
    }
    return found;
  }
  std::optional<Finish> finish() const {
    const auto found = of<Finish>();
    return found.empty() ? std::nullopt : std::optional(found.front());
  }
  bool said(const std::string& text) const {
    for (const Say& one : of<Say>()) {
      if (one.text.find(text) != std::string::npos) return true;
    }
    return false;
  }

  Job job;
  JobMemory memory;
  Duration elapsed{};  // since the job began
  Time at{1000s};
  std::optional<Policy> policy;
  std::vector<Action> all;
  bool beats = true;
};

}  // namespace

TEST_CASE("takeover: an attempt whose ranks all run goes on untouched") {
  Scene scene(2);
  scene.take_over();
  const auto connects = scene.of<Connect>();
  REQUIRE(connects.size() == 2);
  CHECK(connects[0].take_over);
  scene.up(0, HeldState::running);
  scene.say(0, Beat{1, 1, {{0, 7}, {1, 7}}});
  scene.up(1, HeldState::running);
  CHECK(scene.of<Send>().empty());
  CHECK(scene.policy->reached_step() == 7);
  for (uint32_t rank = 0; rank < 4; ++rank) scene.ended(rank, 0);
  for (uint32_t host = 0; host < 2; ++host) scene.say(host, AttemptStopped{1, 0});
  REQUIRE(scene.finish());
  CHECK(scene.finish()->code == 0);
  CHECK_FALSE(scene.finish()->leaves);
  CHECK(scene.sent<StartAttempt>().empty());
}

TEST_CASE("takeover: what ended while nobody was there is the cause") {
  Scene scene(2);
  scene.job.max_restarts = 0;
  scene.take_over();
  scene.up(0, HeldState::running);
  scene.ended(1, 9);
  scene.up(1, HeldState::running);
  REQUIRE(scene.sent<StopAttempt>().size() == 2);
  for (uint32_t host = 0; host < 2; ++host) scene.say(host, AttemptStopped{1, 0});
  REQUIRE(scene.finish());
  CHECK(scene.finish()->code == 9);
  CHECK(scene.finish()->cause.rank == 1);
}

TEST_CASE("takeover: all ended well while nobody was there") {
  Scene scene(1);
  scene.beats = false;
  scene.take_over();
  scene.up(0, HeldState::gone);
  scene.ended(0, 0);
  scene.ended(1, 0);
  scene.say(0, AttemptStopped{1, 0});
  CHECK_FALSE(scene.finish());
  scene.beat(0);
  REQUIRE(scene.finish());
  CHECK(scene.finish()->code == 0);
}

TEST_CASE("takeover: a host whose agent ended is a host that is lost") {
  for (const bool spare : {false, true}) {
    Scene scene(2, spare ? 1 : 0);
    scene.take_over();
    scene.up(0, HeldState::running);
    scene.down(1, HostEnd::ended);
    if (spare) scene.up(2, HeldState::none);
    const auto stops = scene.sent<StopAttempt>();
    REQUIRE(stops.size() == 1);
    CHECK(stops[0].first == 0);
    scene.say(0, AttemptStopped{1, 0});
    if (!spare) {
      const auto connects = scene.of<Connect>();
      CHECK(connects.back().host == 1);
      CHECK_FALSE(connects.back().take_over);
      AgentHello hello;
      hello.boot_id = "boot";
      hello.network = 1;
      scene.event(HostUp{1, hello, "", "", {}});
    }
    const auto starts = scene.sent<StartAttempt>();
    REQUIRE(starts.size() == 2);
    CHECK(starts[0].second.attempt == 2);
    CHECK(starts[1].first == (spare ? 2 : 1));
  }
}

TEST_CASE("takeover: an attempt that was half started is ended, and the next one is started") {
  Scene scene(2);
  scene.memory.between = true;
  scene.take_over();
  scene.up(0, HeldState::running, 2);
  scene.up(1, HeldState::gone, 1);
  const auto stops = scene.sent<StopAttempt>();
  REQUIRE(stops.size() == 1);
  CHECK(stops[0].first == 0);
  CHECK(stops[0].second.attempt == 2);
  CHECK(scene.sent<StartAttempt>().empty());
  scene.say(0, AttemptStopped{2, 0});
  const auto starts = scene.sent<StartAttempt>();
  REQUIRE(starts.size() == 2);
  CHECK(starts[0].second.attempt == 3);
}

TEST_CASE("takeover: an attempt that was half stopped is ended, whatever still runs") {
  Scene scene(2);
  scene.take_over();
  scene.up(0, HeldState::stopping);
  scene.up(1, HeldState::running);
  CHECK(scene.sent<StopAttempt>().size() == 2);
  CHECK(scene.said("when its launcher ended"));
  CHECK(scene.of<HostFailed>().empty());
  scene.say(0, AttemptStopped{1, 0});
  CHECK(scene.sent<StartAttempt>().empty());
  scene.say(1, AttemptStopped{1, 0});
  CHECK(scene.sent<StartAttempt>().size() == 2);
}

TEST_CASE("takeover: a stop that the user asked for is a stop") {
  Scene scene(1);
  scene.memory.stop_signal = SIGINT;
  scene.take_over();
  scene.up(0, HeldState::stopping);
  CHECK(scene.sent<StopAttempt>().size() == 1);
  scene.say(0, AttemptStopped{1, 0});
  REQUIRE(scene.finish());
  CHECK(scene.finish()->code == 128 + SIGINT);
  CHECK(scene.sent<StartAttempt>().empty());
}

TEST_CASE("takeover: what ends the job meanwhile waits until its agents are known") {
  Scene scene(1);
  SUBCASE("the wall time was over before") {
    scene.job.wall_time = 10s;
    scene.elapsed = 1h;
    scene.take_over();
    scene.pass(1s);
  }
  SUBCASE("our output is lost") {
    scene.take_over();
    scene.event(OutputFailed{"standard output cannot be written"});
  }
  CHECK_FALSE(scene.finish());
  scene.up(0, HeldState::running);
  REQUIRE(scene.sent<StopAttempt>().size() == 1);
  scene.say(0, AttemptStopped{1, 0});
  REQUIRE(scene.finish());
  CHECK_FALSE(scene.finish()->leaves);
}

TEST_CASE("takeover: a stop that is asked for meanwhile is one where nothing runs, too") {
  Scene scene(1);
  scene.memory.between = true;
  scene.take_over();
  scene.event(StopRequested{SIGINT});
  scene.up(0, HeldState::gone);
  REQUIRE(scene.finish());
  CHECK(scene.finish()->code == 128 + SIGINT);
}

TEST_CASE("takeover: between two attempts the next one is started at no cost") {
  Scene scene(2);
  scene.memory.between = true;
  scene.job.max_restarts = 0;
  scene.take_over();
  scene.up(0, HeldState::gone);
  scene.ended(1, 9);
  scene.up(1, HeldState::gone);
  const auto starts = scene.sent<StartAttempt>();
  REQUIRE(starts.size() == 2);
  CHECK(starts[0].second.attempt == 2);
}

TEST_CASE("takeover: what is left of an older attempt is ended at once") {
  Scene scene(2, 1);
  scene.memory.attempt = scene.memory.attempts_started = 2;
  scene.memory.hosts = {0, 2};
  scene.take_over();
  scene.up(0, HeldState::running, 2);
  scene.up(1, HeldState::stopping, 1);
  scene.up(2, HeldState::running, 2, 1);
  const auto byes = scene.sent<Goodbye>();
  REQUIRE(byes.size() == 1);
  CHECK(byes[0].first == 1);
  CHECK(byes[0].second.grace_ns == 0);
  CHECK(scene.sent<StopAttempt>().empty());
  CHECK(scene.policy->host_of(2) == 2);
}

TEST_CASE("takeover: where nothing is left, nothing is started") {
  Scene scene(2);
  scene.take_over();
  scene.down(0, HostEnd::ended);
  scene.down(1, HostEnd::ended);
  REQUIRE(scene.finish());
  CHECK(scene.finish()->code == 3);
  CHECK(scene.finish()->leaves);
}

TEST_CASE("takeover: hosts that cannot be reached are not taken for dead") {
  Scene scene(2);
  scene.take_over();
  scene.down(0, HostEnd::ended);
  scene.pass(63s);
  REQUIRE(scene.finish());
  CHECK(scene.finish()->code == 69);
  CHECK(scene.said("h2 did not answer within 60 s"));
}

TEST_CASE("takeover: a job that is watched stays whose it is") {
  Scene scene(2);
  scene.take_over();
  scene.up(0, HeldState::running);
  scene.down(1, HostEnd::taken);
  REQUIRE(scene.finish());
  CHECK(scene.finish()->code == 2);
  CHECK(scene.finish()->leaves);
  CHECK(scene.of<Send>().empty());
}

TEST_CASE("takeover: a launcher in whose place another came leaves the job alone") {
  Scene scene(1);
  scene.take_over();
  scene.up(0, HeldState::running);
  scene.down(0, HostEnd::taken);
  REQUIRE(scene.finish());
  CHECK(scene.finish()->code == 125);
  CHECK(scene.finish()->leaves);
  CHECK(scene.of<Send>().empty());
}

TEST_CASE("takeover: a save whose commit was under way is committed") {
  Scene scene(2);
  scene.job.checkpoint_dir = "/ckpt";
  scene.take_over();
  for (uint32_t host = 0; host < 2; ++host) {
    scene.up(host, HeldState::running);
    for (uint32_t rank = 2 * host; rank < 2 * host + 2; ++rank) {
      ShardSaved m;
      m.attempt = 1;
      m.step = 40;
      m.shard = Shard{rank, 100, std::string(32, 'a'), std::string(32, 'b')};
      scene.say(host, m);
    }
  }
  const auto commits = scene.sent<CommitCheckpoint>();
  REQUIRE(commits.size() == 1);
  CHECK(commits[0].second.step == 40);
  scene.say(0, Performed{commits[0].second.request, ""});
  CHECK(scene.sent<SaveResult>().size() == 2);
}

TEST_CASE("takeover: what the launcher before had used up and learnt counts") {
  Scene scene(2);
  scene.job.max_restarts.reset();
  scene.memory.committed_ever = true;
  scene.memory.budget[static_cast<size_t>(RestartBudget::Kind::program)] = 10;
  scene.take_over();
  scene.up(0, HeldState::running);
  scene.up(1, HeldState::running);
  scene.ended(3, 9);
  for (uint32_t host = 0; host < 2; ++host) scene.say(host, AttemptStopped{1, 0});
  REQUIRE(scene.finish());
  CHECK(scene.finish()->code == 70);
  CHECK(scene.said("restart budget of 10 is used up"));
}

TEST_CASE("takeover: memory is what it was made of") {
  Scene scene(2, 1);
  JobMemory& m = scene.memory;
  m.attempt = 4;
  m.attempts_started = 3;
  m.hosts = {2, 1};
  m.ledger = {{5, true}, {1, false}, {0, false}};
  m.budget = {1, 2, 3, 4, 5};
  m.same_endings = 2;
  m.known = {10, 20};
  m.verified = {20};
  m.rejected = {5};
  m.resumed_step = 10;
  m.resumed = m.committed_ever = m.had_checkpoint = m.other_port_tried = true;
  m.folder = FolderKind::separate;
  m.foreign_path = "/ckpt/own";
  m.foreign_step = 9;
  m.reached_step = 25;
  scene.take_over();
  CHECK(scene.policy->memory() == m);
  CHECK(scene.of<Connect>().size() == 3);  // the host that was replaced may come back
}

TEST_CASE("takeover: a terminal that closes takes the launcher along, not the job") {
  for (const bool survives : {false, true}) {
    Scene scene(1);
    if (!survives) scene.job.survive = 0s;
    scene.take_over();
    scene.up(0, HeldState::running);
    scene.event(StopRequested{SIGHUP});
    CHECK(scene.sent<StopAttempt>().size() == (survives ? 0 : 1));
    CHECK(scene.finish().has_value() == survives);
    if (!survives) continue;
    CHECK(scene.finish()->leaves);
    CHECK(scene.finish()->code == 128 + SIGHUP);
    CHECK(scene.said("hvdlaunch attach job"));
  }
}
