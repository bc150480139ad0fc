// Scenarios of the failure policy: a job of fake hosts is driven by events, and what the policy
// wants done is read back. No process, no clock.
#include "supervisor/policy.h"

#include <doctest/doctest.h>

#include <csignal>
#include <functional>

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// One job of `hosts` hosts with two ranks each and `spares` spares, and its policy.
class Scene {
 public:
  explicit Scene(uint32_t hosts, uint32_t spares = 0, bool checkpoints = true) {
    for (uint32_t i = 0; i < hosts + spares; ++i) {
      Host host;
      host.name = "h" + std::to_string(i + 1);
      host.slots = 2;
      host.spare = i >= hosts;
      job.hosts.push_back(host);
    }
    job.id = "job";
    job.size = 2 * hosts;
    job.argv = {"train"};
    if (checkpoints) job.checkpoint_dir = "/ckpt";
  }

  void start() {
    policy.emplace(job, *place(job.hosts, job.size), 1);
    take(policy->start(at));
  }
  // As far as ranks are started, if all hosts that hold some come up.
  void bring_up() {
    start();
    for (uint32_t host = 0; host < job.hosts.size(); ++host) up(host);
    answer();
  }
  void event(const Event& e) { take(policy->step(e, at)); }
  void say(uint32_t host, FromAgent m) { event(AgentSaid{host, std::move(m)}); }
  void up(uint32_t host) {
    connecting.erase(host);
    AgentHello hello;
    hello.boot_id = one_machine ? "boot" : job.hosts[host].name;
    hello.network = 1;
    hello.reserved_port = 1000 + host;
    event(HostUp{host, hello, own_address(host), "10.0.0.99"});
  }
  static std::string own_address(uint32_t host) { return "10.0.0." + std::to_string(host + 1); }
  // As the last Connect to it has it.
  void up_if_asked(uint32_t host) {
    if (connecting.erase(host) > 0) up(host);
  }
  void refuse_if_asked(uint32_t host) {
    if (connecting.erase(host) > 0) down(host, HostEnd::refused);
  }
  void down(uint32_t host, HostEnd end) {
    connecting.erase(host);
    event(HostDown{host, end, job.hosts[host].name + " is down"});
  }
  void pass(Duration d) {
    at += d;
    if (policy->next_deadline() && *policy->next_deadline() <= at) event(Tick{});
  }

  // Answers what agents of these hosts are asked, until nothing is asked any more.
  void answer() {
    while (!asked.empty()) {
      const Send send = asked.front();
      asked.erase(asked.begin());
      std::visit([&](const auto& m) { answer_one(send.host, m); }, send.message);
    }
  }

  // Only what commits; what else is asked stays open.
  void answer_commits() {
    for (const Send& send : std::exchange(asked, {})) {
      const auto* commit = std::get_if<CommitCheckpoint>(&send.message);
      if (commit != nullptr) {
        answer_one(send.host, *commit);
      } else {
        asked.push_back(send);
      }
    }
  }

  void ended(uint32_t rank, int code, int signal = 0, uint64_t step = 0) {
    WorkerEnded m;
    m.attempt = policy->attempt();
    m.rank = rank;
    m.exit_code = code;
    m.signal = signal;
    if (step > 0) m.steps = {{rank, step}};
    say(policy->host_of(rank), m);
  }
  // A rank's end, and the longest pause before the next attempt.
  void fail_and_wait(uint32_t rank, int code, int signal = 0) {
    ended(rank, code, signal);
    answer();
    pass(61s);
    answer();
  }
  void all_end_well() {
    for (uint32_t rank = 0; rank < job.size; ++rank) ended(rank, 0);
    answer();
  }
  void verify_now() {
    verifies = true;
    asked = std::exchange(held, {});
    answer();
  }
  // All ranks save `step` and the agents commit it.
  void save(uint64_t step) {
    for (uint32_t rank = 0; rank < job.size; ++rank) {
      ShardSaved m;
      m.attempt = policy->attempt();
      m.step = step;
      m.shard = Shard{rank, 100, std::string(32, 'a'), std::string(32, 'b')};
      say(policy->host_of(rank), m);
    }
    answer();
  }

  template <class A>
  uint32_t count() const {
    uint32_t n = 0;
    for (const Action& action : all) n += std::holds_alternative<A>(action) ? 1 : 0;
    return n;
  }
  uint32_t connects(uint32_t host) const {
    uint32_t n = 0;
    for (const Action& action : all) {
      const auto* connect = std::get_if<Connect>(&action);
      n += connect != nullptr && connect->host == host ? 1 : 0;
    }
    return n;
  }
  template <class M>
  uint32_t count_sent() const {
    uint32_t n = 0;
    for (const Action& action : all) {
      const auto* send = std::get_if<Send>(&action);
      n += send != nullptr && std::holds_alternative<M>(send->message) ? 1 : 0;
    }
    return n;
  }
  const Finish* finish() const {
    for (const Action& action : all) {
      if (const auto* f = std::get_if<Finish>(&action)) return f;
    }
    return nullptr;
  }
  bool said_text(const std::string& part) const {
    for (const Action& action : all) {
      const auto* s = std::get_if<Say>(&action);
      if (s != nullptr && s->text.find(part) != std::string::npos) return true;
    }
    return false;
  }

  Job job;
  std::optional<Policy> policy;
  Time at{1000s};
  Actions all;
  std::vector<Send> asked;
  std::vector<StartAttempt> starts;           // newest last, one per host
  std::map<uint64_t, std::string> committed;  // manifests on "disk", by step
  std::set<uint64_t> corrupt;
  std::set<uint32_t> blind;                   // hosts that do not see the shared folder
  LockTaken lock{0, true, false, 0, {}, ""};  // what agents say of the folder's lock
  uint64_t asked_stale = 0;
  std::vector<uint64_t> pruned;
  std::string folder_error;  // of the checkpoint folder
  std::set<uint32_t> connecting;
  bool verifies = true;  // else not before verify_now()
  std::vector<Send> held;
  bool answers_stop = true;
  bool one_machine = false;
  // What hosts have beside 10.0.0.N on eth0, and what becomes of dials; all are reached by default.
  std::map<uint32_t, std::vector<HostAddress>> more_addresses;
  std::function<DialEnd(uint32_t from, uint32_t to, const std::string& address)> dial;
  bool answers_proof = true;
  std::set<uint32_t> no_address;  // hosts that have none
  std::vector<std::pair<uint32_t, uint32_t>> dialled;
  bool answers_look = true, answers_stacks = true;
  std::set<uint32_t> stopped;  // ranks whose process is, when looked at
  Duration quiet = 0s;         // of every rank, when looked at

  void stalls(uint32_t rank) { say(policy->host_of(rank), RankStalled{policy->attempt(), rank}); }
  void moves(uint32_t rank) { say(policy->host_of(rank), RankMoved{policy->attempt(), rank}); }

 private:
  void take(Actions actions) {
    for (Action& action : actions) {
      if (const auto* connect = std::get_if<Connect>(&action)) connecting.insert(connect->host);
      if (auto* send = std::get_if<Send>(&action)) {
        if (auto* start = std::get_if<StartAttempt>(&send->message)) starts.push_back(*start);
        asked.push_back(*send);
      }
      all.push_back(std::move(action));
    }
  }

  template <class M>
  void answer_one(uint32_t, const M&) {}
  void answer_one(uint32_t host, const StopAttempt& m) {
    if (answers_stop) say(host, AttemptStopped{m.attempt, 2000 + host});
  }
  void answer_one(uint32_t host, const OpenProof& m) {
    if (!answers_proof) return;
    ProofOpened opened{m.request, 4000 + host, {}, ""};
    if (no_address.count(host) == 0) opened.addresses = {{"eth0", own_address(host), 24}};
    for (const HostAddress& one : more_addresses[host]) opened.addresses.push_back(one);
    say(host, opened);
  }
  void answer_one(uint32_t host, const DialPeers& m) {
    Dialled answer{m.round, {}};
    for (const DialTarget& target : m.targets) {
      CHECK(target.port == 4000 + target.host);
      dialled.emplace_back(host, target.host);
      for (uint32_t i = 0; i < target.addresses.size(); ++i) {
        const DialEnd end = dial ? dial(host, target.host, target.addresses[i]) : DialEnd::reached;
        if (end != DialEnd::pending) answer.results.push_back({target.host, i, end, 0});
      }
    }
    say(host, answer);
  }
  void answer_one(uint32_t host, const ProbeDirectory& m) {
    if (!folder_error.empty()) return say(host, DirectoryProbed{m.request, false, folder_error});
    say(host, DirectoryProbed{m.request, blind.count(host) == 0, ""});
  }
  void answer_one(uint32_t host, const TakeLock& m) {
    LockTaken answer = lock;
    answer.request = m.request;
    asked_stale = m.stale_ns;
    if (m.stale_ns != 0 && m.stale_ns == answer.touched_ns) answer.taken = true;
    say(host, answer);
  }
  void answer_one(uint32_t host, const ListCheckpoints& m) {
    CheckpointsListed listed;
    listed.request = m.request;
    for (const auto& [step, manifest] : committed) {
      ListedCheckpoint one{step, manifest, {}};
      for (uint32_t rank = 0; rank < job.size; ++rank) one.shards.push_back(rank);
      listed.found.push_back(one);
    }
    say(host, listed);
  }
  void answer_one(uint32_t host, const VerifyCheckpoint& m) {
    if (!verifies) return held.push_back({host, m});
    CheckpointVerified verified{m.request, m.step, {}, {}};
    if (corrupt.count(m.step) > 0) {
      verified.defects.push_back({m.shards.front(), "rank-0000.safetensors has another digest"});
    } else {
      verified.whole = m.shards;
    }
    say(host, verified);
  }
  void answer_one(uint32_t host, const CommitCheckpoint& m) {
    committed[m.step] = m.manifest;
    say(host, Performed{m.request, ""});
  }
  void answer_one(uint32_t host, const PruneCheckpoints& m) {
    for (const uint64_t step : m.steps) {
      pruned.push_back(step);
      committed.erase(step);
    }
    say(host, Performed{m.request, ""});
  }
  void answer_one(uint32_t host, const WriteJobFile& m) { say(host, Performed{m.request, ""}); }
  void answer_one(uint32_t host, const LookAtRanks& m) {
    if (!answers_look) return;
    RanksSeen seen{m.attempt, m.look, {}};
    for (uint32_t rank = 0; rank < job.size; ++rank) {
      if (policy->host_of(rank) == host) seen.ranks.push_back(view(rank));
    }
    say(host, seen);
  }
  void answer_one(uint32_t host, const TakeStacks& m) {
    if (answers_stacks) say(host, StacksTaken{m.attempt, m.request, {}});
  }
  RankView view(uint32_t rank) const {
    const uint32_t state = stopped.count(rank) > 0 ? 'T' : 'S';
    return {rank, 5, 9, static_cast<uint64_t>(quiet.count()), state};
  }
};

Scene running(uint32_t hosts, uint32_t spares = 0, bool checkpoints = true) {
  Scene scene(hosts, spares, checkpoints);
  scene.start();
  for (uint32_t host = 0; host < hosts + spares; ++host) scene.up(host);
  scene.answer();
  return scene;
}

}  // namespace

TEST_CASE("a job without faults starts each host once and ends with 0") {
  Scene scene = running(2);
  REQUIRE(scene.starts.size() == 2);
  CHECK(scene.starts[0].attempt == 1);
  CHECK(scene.starts[0].resume_from.empty());
  CHECK(scene.starts[1].data_address == "10.0.0.2");
  CHECK(scene.starts[1].master_address == "10.0.0.1");
  CHECK(scene.starts[1].master_port == 1000);
  CHECK(scene.starts[1].places[0].rank == 2);
  scene.all_end_well();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 0);
  CHECK(scene.count<Finish>() == 1);
}

TEST_CASE("a2: hosts that are one machine are told of each other's ranks") {
  for (const bool one_machine : {true, false}) {
    Scene scene(3);
    scene.one_machine = one_machine;
    scene.start();
    for (uint32_t host = 0; host < 3; ++host) scene.up(host);
    scene.answer();
    REQUIRE(scene.starts.size() == 3);
    for (uint32_t host = 0; host < 3; ++host) {
      CHECK(scene.starts[host].machine_size == (one_machine ? 6 : 2));
      CHECK(scene.starts[host].machine_first == (one_machine ? 2 * host : 0));
    }
  }
}

TEST_CASE("a host's devices and variables go to its ranks, then the job's") {
  Scene scene(1);
  scene.job.hosts[0].gpus = {"0", "GPU-8f2c"};
  scene.job.hosts[0].env = {{"A", "host"}};
  scene.job.set = {{"A", "job"}};
  scene.start();
  scene.up(0);
  scene.answer();
  REQUIRE(scene.starts.size() == 1);
  CHECK(scene.starts[0].set ==
        Variables{{"CUDA_VISIBLE_DEVICES", "0,GPU-8f2c"}, {"A", "host"}, {"A", "job"}});
}

TEST_CASE("ranks start only when every host that holds ranks is up") {
  Scene scene(3);
  scene.start();
  scene.up(0);
  scene.up(2);
  scene.answer();
  CHECK(scene.starts.empty());
  scene.up(1);
  scene.answer();
  CHECK(scene.starts.size() == 3);
}

TEST_CASE("without a way to go on the first abnormal end is the job's") {
  Scene scene = running(2, 0, false);
  scene.ended(3, 7);
  scene.ended(1, 0, SIGTERM);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 7);
  CHECK(scene.finish()->from_worker);
  CHECK(scene.finish()->cause.rank == 3);
  CHECK(scene.said_text("rank 3 on h2 ended with exit code 7"));
}

TEST_CASE("a killed rank relaunches all from the newest whole checkpoint") {
  Scene scene = running(2);
  scene.save(50);
  scene.save(100);
  CHECK(scene.committed.size() == 2);
  scene.ended(1, 0, SIGKILL, 120);
  scene.answer();
  REQUIRE(scene.starts.size() == 4);
  CHECK(scene.starts[2].attempt == 2);
  CHECK(scene.starts[2].resume_from == "/ckpt/step-000000100");
  CHECK(scene.starts[2].resume_step == 100);
  CHECK(scene.starts[2].reached_step == 120);
  CHECK(scene.starts[2].master_port == 2000);
  CHECK(scene.starts[2].restart_reason == "worker-failed");
  scene.all_end_well();
  CHECK(scene.finish()->code == 0);
  CHECK(scene.finish()->attempts == 2);
}

TEST_CASE("c8: an address in use costs one more try, not the job, and no budget") {
  const auto in_use = [](Scene& scene, const std::string& words) {
    WorkerEnded m;
    m.attempt = scene.policy->attempt();
    m.exit_code = 3;
    m.last_lines = "Traceback\n" + words + "\n";
    scene.say(0, m);
    scene.answer();
  };
  for (const char* words : {"OSError: [Errno 98] Address already in use",
                            "name: EADDRINUSE, message", "bind: address already in use"}) {
    Scene scene = running(2, 0, false);
    CHECK_FALSE(scene.starts[0].free_port);
    // Whoever met the stranger at that port may end first.
    scene.ended(3, 1);
    in_use(scene, words);
    REQUIRE(scene.starts.size() == 4);
    CHECK(scene.starts[2].free_port);
    CHECK(scene.starts[2].master_port == 2000);
    CHECK(scene.said_text("rank 0 found its address in use"));
    in_use(scene, words);
    REQUIRE(scene.finish() != nullptr);
    CHECK(scene.finish()->code == 3);
    CHECK(scene.finish()->attempts == 2);
  }
  // Another failure, a rank that was told no port, and one that had come far: as ever.
  Scene other = running(2, 0, false);
  in_use(other, "no such file");
  CHECK(other.finish() != nullptr);
  Scene far = running(2, 0, false);
  far.say(0, Beat{0, 1, {{0, 5}}});
  in_use(far, "Address already in use");
  CHECK(far.finish() != nullptr);
}

TEST_CASE("a checkpoint that does not verify is skipped by name") {
  Scene scene = running(2);
  scene.save(50);
  scene.save(100);
  scene.corrupt.insert(100);
  scene.down(1, HostEnd::ended);
  scene.answer();
  scene.up(1);
  scene.answer();
  CHECK(scene.said_text("step-000000100 is skipped: rank-0000.safetensors has another digest"));
  CHECK(scene.starts.back().resume_step == 50);
}

TEST_CASE("agents that saved a checkpoint verify it while the ranks start from it") {
  Scene scene = running(2);
  scene.save(50);
  const uint32_t listed = scene.count_sent<ListCheckpoints>();
  const uint32_t probed = scene.count_sent<ProbeDirectory>();
  scene.verifies = false;
  scene.ended(0, 1, 0, 60);
  scene.answer();
  REQUIRE(scene.policy->attempt() == 2);
  CHECK(scene.starts.back().resume_step == 50);
  CHECK(scene.count_sent<ListCheckpoints>() == listed);
  CHECK(scene.count_sent<ProbeDirectory>() == probed);
  // What stands on it is not committed before it is known to be whole.
  scene.save(100);
  CHECK(scene.committed.count(100) == 0);
  scene.verify_now();
  CHECK(scene.committed.count(100) == 1);
}

TEST_CASE("a checkpoint that was damaged since is left while the ranks start from it") {
  Scene scene = running(2);
  scene.save(50);
  scene.save(100);
  scene.corrupt.insert(100);
  scene.ended(0, 1, 0, 110);
  scene.answer();
  CHECK(scene.said_text("step-000000100 cannot be used: rank-0000.safetensors has another digest"));
  CHECK(scene.starts.back().resume_step == 50);
  CHECK(scene.policy->attempt() == 3);
  // Nor is it counted among those that are whole.
  scene.job.checkpoint_keep = 2;
  scene.save(150);
  CHECK(scene.pruned.empty());
}

TEST_CASE("a checkpoint folder that cannot be used for a while does not end the job") {
  Scene scene = running(2);
  scene.save(50);
  scene.say(0, Beat{0, 1, {{0, 60}}});
  scene.folder_error = "/ckpt: Input/output error";
  scene.down(1, HostEnd::ended);
  scene.answer();
  scene.up(1);
  scene.answer();
  CHECK(scene.said_text("cannot be used on h1: /ckpt: Input/output error"));
  CHECK(scene.finish() == nullptr);
  CHECK(scene.starts.size() == 2);
  scene.folder_error.clear();
  scene.pass(61s);
  scene.answer();
  REQUIRE(scene.starts.size() == 4);
  CHECK(scene.starts.back().resume_step == 50);
  CHECK(scene.starts.back().restart_reason == "storage");
}

TEST_CASE("a checkpoint folder that cannot be used any more ends the job with 70") {
  Scene scene = running(1);
  scene.save(50);
  scene.folder_error = "/ckpt: Read-only file system";
  scene.down(0, HostEnd::ended);
  scene.answer();
  scene.up(0);
  scene.answer();
  for (int i = 0; i < 30 && scene.finish() == nullptr; ++i) {
    scene.pass(61s);
    scene.answer();
  }
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 70);
}

TEST_CASE("k4: with no whole checkpoint left the job ends rather than starting over") {
  Scene scene = running(2);
  scene.save(50);
  scene.corrupt.insert(50);
  scene.ended(0, 1);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 70);
  CHECK(scene.said_text("no whole checkpoint is left"));
}

TEST_CASE("a resume without a checkpoint ends with 3 and starts nothing") {
  Scene scene(1);
  scene.job.resume = true;
  scene.start();
  scene.up(0);
  scene.answer();
  CHECK(scene.starts.empty());
  CHECK(scene.finish()->code == 3);
}

TEST_CASE("old news is dropped") {
  Scene scene = running(2);
  scene.save(50);
  scene.ended(1, 0, SIGKILL, 60);
  scene.answer();
  REQUIRE(scene.policy->attempt() == 2);
  WorkerEnded old;
  old.attempt = 1;
  old.rank = 0;
  old.signal = SIGTERM;
  scene.say(0, old);
  ShardSaved shard;
  shard.attempt = 1;
  shard.step = 60;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    shard.shard = Shard{rank, 1, "x", "x"};
    scene.say(scene.policy->host_of(rank), shard);
  }
  scene.answer();
  CHECK(scene.committed.count(60) == 0);
  CHECK(scene.policy->attempt() == 2);
}

TEST_CASE("a silent host's ranks go to the spare and everyone else keeps theirs") {
  Scene scene = running(2, 1);
  scene.save(10);
  scene.down(1, HostEnd::silent);
  const auto& stop = std::get<StopAttempt>(scene.asked.back().message);
  CHECK(stop.failed);
  CHECK(stop.failed_rank == 2);
  scene.answer();
  REQUIRE(scene.starts.size() == 4);
  CHECK(scene.starts[2].places[0].rank == 0);
  CHECK(scene.starts[3].places[0].rank == 2);
  CHECK(scene.policy->host_of(2) == 2);
  CHECK(scene.policy->host_of(0) == 0);
  CHECK(scene.said_text("the spare h3 takes the ranks of h2"));
}

TEST_CASE("an agent's end reconnects the same host without a spare that is up") {
  Scene scene = running(2);
  scene.save(10);
  const uint32_t before = scene.count<Connect>();
  scene.down(1, HostEnd::ended);
  scene.answer();
  CHECK(scene.count<Connect>() == before + 1);
  CHECK(scene.starts.size() == 2);
  scene.up(1);
  scene.answer();
  CHECK(scene.starts.size() == 4);
  CHECK(scene.policy->host_of(2) == 1);
}

TEST_CASE("a spare that is there takes over from an agent that ended, and they change places") {
  Scene scene = running(2, 1);
  scene.save(10);
  const uint32_t before = scene.count<Connect>();
  scene.down(1, HostEnd::ended);
  scene.answer();
  REQUIRE(scene.starts.size() == 4);
  CHECK(scene.policy->host_of(2) == 2);
  CHECK(scene.count<Connect>() == before);
  scene.pass(1s);
  CHECK(scene.count<Connect>() == before + 1);
  scene.up(1);
  CHECK(scene.said_text("h2 stands by as a spare"));
  scene.say(0, Beat{0, scene.policy->attempt(), {{0, 15}}});
  scene.down(2, HostEnd::silent);
  scene.answer();
  CHECK(scene.policy->host_of(2) == 1);
  CHECK(scene.starts.size() == 6);
}

TEST_CASE("a spare that is lost is connected again") {
  Scene scene = running(2, 1);
  const uint32_t before = scene.count<Connect>();
  scene.down(2, HostEnd::ended);
  CHECK(scene.said_text("spare lost: h3 is down"));
  scene.pass(10s);
  CHECK(scene.count<Connect>() == before + 1);
  scene.down(2, HostEnd::refused);
  scene.pass(10s);
  CHECK(scene.count<Connect>() == before + 2);
  CHECK(scene.starts.size() == 2);
}

TEST_CASE("a host that refuses to come back is replaced by the spare") {
  Scene scene = running(2, 1);
  scene.save(10);
  scene.down(2, HostEnd::ended);
  scene.pass(10s);
  scene.down(1, HostEnd::ended);
  scene.answer();
  CHECK(scene.policy->host_of(2) == 1);
  scene.down(1, HostEnd::refused);
  scene.up(2);
  CHECK(scene.policy->host_of(2) == 2);
  scene.answer();
  CHECK(scene.starts.size() == 4);
}

TEST_CASE("where hosts keep checkpoints of their own, one whose agent ended is waited for") {
  Scene scene(2, 1);
  scene.blind = {1, 2};
  scene.start();
  for (uint32_t host = 0; host < 3; ++host) scene.up(host);
  scene.answer();
  scene.save(10);
  scene.down(1, HostEnd::ended);
  scene.answer();
  CHECK(scene.policy->host_of(2) == 1);
  // If it does not come, the spare is better than nothing.
  scene.down(1, HostEnd::refused);
  CHECK(scene.policy->host_of(2) == 2);
}

TEST_CASE("without a spare a lost host is tried again until the start deadline, then 70") {
  Scene scene = running(2);
  scene.save(10);
  scene.down(1, HostEnd::silent);
  scene.answer();
  for (int i = 0; i < 200 && scene.finish() == nullptr; ++i) {
    if (scene.all.back().index() == Action(Connect{}).index()) scene.down(1, HostEnd::refused);
    scene.pass(1s);
  }
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 70);
  CHECK(scene.count<Connect>() > 10);
}

TEST_CASE("hosts refused at the start: 69, all named, nothing started") {
  Scene scene(3);
  scene.start();
  scene.down(1, HostEnd::refused);
  scene.pass(1s);
  scene.down(2, HostEnd::refused);
  CHECK(scene.finish() == nullptr);
  scene.up(0);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 69);
  CHECK(scene.finish()->cause.text == "h2 is down\nh3 is down");
  CHECK(scene.said_text("h2 is down\nh3 is down"));
  CHECK(scene.starts.empty());
}

TEST_CASE("a host refused at the start is not waited for long once another was") {
  Scene scene(3);
  scene.start();
  scene.down(1, HostEnd::refused);
  scene.pass(3s);
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 69);
  CHECK(scene.finish()->cause.text == "h2 is down");
}

TEST_CASE("a host refused at the start whose ranks a spare takes is told with its reason") {
  for (const bool spare_first : {false, true}) {
    Scene scene(2, 1);
    scene.start();
    scene.up(0);
    if (spare_first) scene.up(2);
    scene.down(1, HostEnd::refused);
    if (!spare_first) scene.up(2);
    scene.answer();
    CHECK(scene.starts.size() == 2);
    CHECK(scene.said_text("h2 is down"));
    CHECK(scene.said_text("the spare h3 takes the ranks of h2"));
  }
}

// A host that is listed for the first time.
uint32_t new_host(Scene& scene) {
  Host host;
  host.name = "h" + std::to_string(scene.job.hosts.size() + 1);
  host.slots = 2;
  host.spare = true;
  scene.job.hosts.push_back(host);
  return static_cast<uint32_t>(scene.job.hosts.size() - 1);
}

TEST_CASE("a host that comes to the list stands by and takes the ranks of one that goes") {
  Scene scene = running(2);
  scene.save(10);
  const uint32_t come = new_host(scene);
  scene.event(HostsListed{{come}, {}});
  CHECK(scene.connects(come) == 1);
  // Not before it can: what runs there goes on.
  scene.event(HostsListed{{}, {1}});
  CHECK(
      scene.said_text("h2 is not listed any more: its ranks stay there until a spare can take "
                      "them"));
  CHECK(scene.count_sent<StopAttempt>() == 0);
  scene.up(come);
  REQUIRE(scene.count_sent<StopAttempt>() == 2);
  const auto& stop = std::get<StopAttempt>(scene.asked.back().message);
  CHECK_FALSE(stop.failed);
  CHECK(stop.grace_ns == static_cast<uint64_t>(scene.job.grace.count()));
  scene.answer();
  CHECK(scene.starts.size() == 4);
  CHECK(scene.policy->host_of(2) == come);
  CHECK(scene.policy->host_of(0) == 0);
  CHECK(scene.finish() == nullptr);
  // It cost no budget, and nobody is let back in by himself.
  scene.down(1, HostEnd::ended);
  scene.pass(10min);
  CHECK(scene.connects(1) == 1);
  scene.event(HostsListed{{1}, {}});
  CHECK(scene.connects(1) == 2);
}

TEST_CASE("a spare that goes from the list is let go, and comes back with it") {
  Scene scene = running(1, 1);
  scene.event(HostsListed{{}, {1}});
  CHECK(scene.count<Drop>() == 1);
  scene.save(10);
  scene.fail_and_wait(0, 0, SIGKILL);
  scene.down(0, HostEnd::silent);
  CHECK_FALSE(scene.said_text("the spare h2 takes the ranks of h1"));
  scene.event(HostsListed{{1}, {}});
  CHECK(scene.connects(1) == 2);
}

TEST_CASE("a job that cannot go on stays where it is, whatever is listed") {
  Scene scene = running(1, 1, false);
  scene.event(HostsListed{{}, {0}});
  CHECK(
      scene.said_text("h1 is not listed any more: its ranks stay there, since the job could not "
                      "go on"));
  CHECK(scene.count_sent<StopAttempt>() == 0);
  scene.all_end_well();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 0);
}

TEST_CASE("when the spare is lost while a host that is not listed is left, its ranks return") {
  Scene scene = running(1, 1);
  scene.save(10);
  scene.event(HostsListed{{}, {0}});
  REQUIRE(scene.count_sent<StopAttempt>() == 1);
  scene.down(1, HostEnd::ended);
  scene.answer();
  CHECK(scene.finish() == nullptr);
  CHECK(scene.starts.size() == 2);
  CHECK(scene.policy->host_of(0) == 0);
}

TEST_CASE("a spare that is not there holds nothing up") {
  Scene scene(1, 1);
  scene.start();
  scene.down(1, HostEnd::refused);
  scene.up(0);
  scene.answer();
  CHECK(scene.starts.size() == 1);
}

TEST_CASE("the budget is used up without progress and refills with it") {
  Scene scene = running(1);
  scene.job.max_restarts = 2;
  for (int i = 0; i < 2; ++i) {
    scene.fail_and_wait(0, 0, SIGKILL);
  }
  CHECK(scene.starts.size() == 3);
  scene.say(0, Beat{0, scene.policy->attempt(), {{0, 5}}});
  for (int i = 0; i < 2; ++i) {
    scene.fail_and_wait(0, 0, SIGKILL);
  }
  CHECK(scene.starts.size() == 5);
  scene.ended(0, 0, SIGKILL);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 70);
  CHECK(scene.said_text("the restart budget of 2 is used up"));
}

TEST_CASE("the first relaunch is immediate, later ones back off") {
  Scene scene = running(1);
  scene.ended(0, 0, SIGKILL);
  scene.answer();
  CHECK(scene.starts.size() == 2);
  scene.ended(0, 0, SIGKILL);
  scene.answer();
  CHECK(scene.starts.size() == 2);
  REQUIRE(scene.policy->next_deadline());
  const Duration pause = *scene.policy->next_deadline() - scene.at;
  CHECK(pause >= 500ms);
  CHECK(pause <= 1s);
  scene.pass(1s);
  scene.answer();
  CHECK(scene.starts.size() == 3);
}

TEST_CASE("the same failure three times without progress is a crash loop") {
  Scene scene = running(1);
  for (int i = 0; i < 3; ++i) {
    scene.fail_and_wait(0, 9);
  }
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 9);
  CHECK(scene.starts.size() == 3);
}

TEST_CASE("numbers in the last line do not make it another failure") {
  Scene scene = running(1);
  for (int i = 0; i < 3; ++i) {
    WorkerEnded m;
    m.attempt = scene.policy->attempt();
    m.exit_code = 9;
    m.last_lines = "12:00:0" + std::to_string(i) + " rank " + std::to_string(i % 2) + ": no data\n";
    scene.say(0, m);
    scene.answer();
    scene.pass(61s);
    scene.answer();
  }
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.starts.size() == 3);
}

TEST_CASE("kills from outside are no crash loop") {
  Scene scene = running(1);
  for (int i = 0; i < 4; ++i) {
    scene.fail_and_wait(0, 0, SIGKILL);
  }
  CHECK(scene.finish() == nullptr);
}

TEST_CASE("k2: a checkpoint whose readers crash twice is set aside") {
  Scene scene = running(1);
  scene.save(50);
  scene.save(100);
  scene.ended(0, 0, SIGKILL, 110);
  scene.answer();
  REQUIRE(scene.starts.back().resume_step == 100);
  scene.fail_and_wait(0, 5);
  REQUIRE(scene.starts.back().resume_step == 100);
  scene.fail_and_wait(1, 0, SIGSEGV);
  CHECK(scene.starts.back().resume_step == 50);
}

TEST_CASE("a broken link costs one relaunch and no budget, but pauses when it breaks again") {
  Scene scene = running(1);
  scene.save(5);
  for (uint32_t i = 1; i <= 30; ++i) {
    scene.down(0, HostEnd::lost);
    scene.answer();
    CHECK((scene.count<Connect>() == i + 1) == (i == 1));
    if (i > 1) scene.pass(301s);
    CHECK(scene.count<Connect>() == i + 1);
    scene.up(0);
    scene.answer();
  }
  CHECK(scene.finish() == nullptr);
  CHECK(scene.starts.size() == 31);
  // With progress, and after ten good minutes, the next one is a first one.
  scene.pass(11min);
  scene.say(0, Beat{0, scene.policy->attempt(), {{0, 1000}}});
  scene.down(0, HostEnd::lost);
  scene.answer();
  CHECK(scene.count<Connect>() == 32);
}

TEST_CASE("a program that cannot run ends the job at once") {
  Scene scene = running(1);
  WorkerEnded m;
  m.attempt = 1;
  m.exit_code = 127;
  m.not_started = "'train' was not found in PATH";
  scene.say(0, m);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 127);
  CHECK_FALSE(scene.finish()->from_worker);
}

TEST_CASE("a rank that leaves early is a failure, the last rank's silence is not") {
  Scene scene = running(1, 0, false);
  WorkerEnded m;
  m.attempt = 1;
  m.left_early = true;
  SUBCASE("others run") {
    scene.say(0, m);
    scene.answer();
    CHECK(scene.finish()->code == 1);
  }
  SUBCASE("the last one") {
    scene.ended(0, 0);
    m.rank = 1;
    scene.say(0, m);
    scene.answer();
    CHECK(scene.finish()->code == 0);
  }
}

TEST_CASE("a stop by the user: grace, then at once, never a relaunch") {
  Scene scene = running(2);
  scene.answers_stop = false;
  scene.event(StopRequested{SIGINT});
  REQUIRE(std::holds_alternative<StopAttempt>(scene.asked.back().message));
  CHECK(std::get<StopAttempt>(scene.asked.back().message).grace_ns == 30'000'000'000u);
  scene.event(StopRequested{SIGINT});  // the same key press
  scene.pass(1s);
  scene.event(StopRequested{SIGHUP});  // the terminal that closes
  CHECK(std::get<StopAttempt>(scene.asked.back().message).grace_ns > 0);
  scene.event(StopRequested{SIGINT});
  CHECK(std::get<StopAttempt>(scene.asked.back().message).grace_ns == 0);
  scene.answers_stop = true;
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 130);
}

TEST_CASE("a stop by the user ends every phase") {
  SUBCASE("gathering") {
    Scene scene(1);
    scene.start();
    scene.event(StopRequested{SIGTERM});
    CHECK(scene.finish()->code == 143);
  }
  SUBCASE("preparing") {
    Scene scene(1);
    scene.start();
    scene.up(0);
    scene.event(StopRequested{SIGTERM});
    CHECK(scene.finish()->code == 143);
    CHECK(scene.starts.empty());
  }
  SUBCASE("stopping after a failure") {
    Scene scene = running(1);
    scene.ended(0, 1);
    scene.event(StopRequested{SIGTERM});
    scene.answer();
    CHECK(scene.finish()->code == 143);
    CHECK(scene.starts.size() == 1);
  }
  SUBCASE("stopping after a failure that ends the job anyway") {
    Scene scene = running(1, 0, false);
    scene.ended(0, 7);
    scene.event(StopRequested{SIGTERM});
    scene.answer();
    CHECK(scene.finish()->code == 7);
  }
  SUBCASE("all ranks ended well") {
    Scene scene = running(1);
    for (uint32_t rank = 0; rank < 2; ++rank) scene.ended(rank, 0);
    scene.event(StopRequested{SIGTERM});
    scene.answer();
    CHECK(scene.finish()->code == 0);
  }
  SUBCASE("backing off") {
    Scene scene = running(1);
    for (int i = 0; i < 2; ++i) {
      scene.ended(0, 0, SIGKILL);
      scene.answer();
    }
    scene.event(StopRequested{SIGHUP});
    CHECK(scene.finish()->code == 129);
  }
}

TEST_CASE("a stop in order whose ranks save ends with 75, of whatever reason") {
  enum class Why { signal, wall_time, output };
  for (const Why why : {Why::signal, Why::wall_time, Why::output}) {
    for (const bool save : {false, true}) {
      Scene scene(2);
      scene.job.wall_time = 100s;
      scene.start();
      for (uint32_t host = 0; host < 2; ++host) scene.up(host);
      scene.answer();
      scene.save(5);  // before the stop: not what the job ended with
      scene.answers_stop = false;
      if (why == Why::wall_time) scene.pass(68s);
      if (why == Why::signal) scene.event(StopRequested{SIGTERM});
      if (why == Why::output) scene.event(OutputFailed{"standard output is full"});
      if (save) scene.save(6);
      for (uint32_t rank = 0; rank < 4; ++rank) scene.ended(rank, 0);
      for (uint32_t host = 0; host < 2; ++host) scene.say(host, AttemptStopped{1, 1});
      REQUIRE(scene.finish() != nullptr);
      const int unsaved = why == Why::signal ? 143 : why == Why::wall_time ? 124 : 125;
      CHECK(scene.finish()->code == (save ? 75 : unsaved));
      CHECK_FALSE(scene.finish()->from_worker);
      CHECK(scene.finish()->newest_step == (save ? 6u : 5u));
    }
  }
}

TEST_CASE("a commit under way when the last rank ends is waited for, within the grace") {
  for (const bool answered : {true, false}) {
    Scene scene = running(2);
    scene.answers_stop = false;
    scene.event(StopRequested{SIGINT});
    scene.asked.clear();
    for (uint32_t rank = 0; rank < 4; ++rank) {
      ShardSaved m;
      m.attempt = 1;
      m.step = 7;
      m.shard = Shard{rank, 100, std::string(32, 'a'), std::string(32, 'b')};
      scene.say(scene.policy->host_of(rank), m);
      scene.ended(rank, 0);
    }
    for (uint32_t host = 0; host < 2; ++host) scene.say(host, AttemptStopped{1, 1});
    CHECK(scene.finish() == nullptr);
    if (answered) scene.answer();
    scene.pass(41s);
    REQUIRE(scene.finish() != nullptr);
    CHECK(scene.finish()->code == (answered ? 75 : 130));
  }
}

TEST_CASE("a stop in order says what it waits for every ten seconds") {
  Scene scene = running(2);
  scene.answers_stop = false;
  scene.event(StopRequested{SIGINT});
  CHECK(scene.said_text("stopping all ranks within 30 s"));
  scene.ended(0, 0);
  scene.pass(10s);
  CHECK(scene.said_text("still stopping rank 1 on h1, rank 2 on h2, rank 3 on h2: KILL in 20 s"));
  for (uint32_t rank = 1; rank < 4; ++rank) scene.ended(rank, 0);
  scene.pass(10s);
  CHECK(scene.said_text("still stopping what they started: KILL in 10 s"));
}

TEST_CASE("the wall time leaves room for the grace, and half of itself to the job") {
  const auto plan = [](Duration wall, Duration grace) {
    const WallPlan p = plan_wall_time(wall, grace);
    CHECK(p.stop_after + p.grace < wall);
    CHECK(p.stop_after >= wall / 2);
    return p;
  };
  CHECK(plan(2h, 30s).stop_after == 2h - 32s);
  CHECK(plan(2h, 30s).grace == 30s);
  CHECK(plan(10s, 1s).stop_after == 8s);
  CHECK(plan(10s, 30s).stop_after == 5s);
  CHECK(plan(10s, 30s).grace == 4s);
  CHECK(plan(1s, 0s).stop_after == 900ms);
}

TEST_CASE("the wall time ends every phase, and forbids another attempt") {
  Scene scene(1);
  scene.job.wall_time = 10s;
  scene.job.grace = 1s;
  SUBCASE("gathering") {
    scene.start();
    scene.pass(9s);
    CHECK(scene.finish()->code == 124);
  }
  SUBCASE("stopping after a failure, where the job could go on") {
    scene.start();
    scene.up(0);
    scene.answer();
    scene.answers_stop = false;
    scene.ended(0, 9);
    scene.pass(9s);
    scene.say(0, AttemptStopped{1, 1});
    CHECK(scene.finish()->code == 124);
    CHECK(scene.starts.size() == 1);
  }
  SUBCASE("running, after the user asked for a stop") {
    scene.start();
    scene.up(0);
    scene.answer();
    scene.answers_stop = false;
    scene.event(StopRequested{SIGTERM});
    scene.pass(9s);
    scene.say(0, AttemptStopped{1, 1});
    CHECK(scene.finish()->code == 143);
  }
}

TEST_CASE("a wall time and another limit that passed in one sleep end the job once") {
  Scene scene(1);
  scene.job.wall_time = 10s;
  scene.start();
  scene.pass(1000s);
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 124);
  CHECK_FALSE(scene.policy->next_deadline().has_value());
}

TEST_CASE("a code or signal that no process can have is no success") {
  for (const Cause::Kind kind :
       {Cause::Kind::exited, Cause::Kind::not_started, Cause::Kind::aborted}) {
    Cause cause;
    cause.kind = kind;
    cause.code = 256;
    CHECK(exit_code_of(cause) != 0);
    cause.code = 7;
    CHECK(exit_code_of(cause) == 7);
  }
  Cause killed;
  killed.kind = Cause::Kind::killed;
  killed.signal = -128;
  CHECK(exit_code_of(killed) == 70);
  CHECK(exit_code_of(Cause{}) == 0);
}

TEST_CASE("f2: what follows the first abnormal end is a consequence, and counted") {
  Scene scene = running(4, 0, false);
  scene.answers_stop = false;
  scene.ended(3, 7);
  for (uint32_t rank : {0u, 1u, 2u, 4u, 5u, 6u, 7u}) {
    if (rank % 2 == 0)
      scene.ended(rank, 0, SIGTERM);
    else
      scene.ended(rank, 221);
  }
  scene.answers_stop = true;
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 7);
  CHECK(scene.finish()->cause.rank == 3u);
  CHECK(scene.finish()->consequences ==
        std::vector<std::string>{"rank 0 on h1 was killed by SIGTERM, and 3 more",
                                 "rank 1 on h1 ended with exit code 221, and 2 more"});
}

TEST_CASE("f5: ranks that end with 0 while a failure is on its way are no success") {
  for (const bool zeros_first : {false, true}) {
    for (const bool host_lost : {false, true}) {
      Scene scene = running(3, 0, false);
      const auto fault = [&] {
        if (host_lost) {
          scene.down(2, HostEnd::lost);
        } else {
          scene.ended(5, 0, SIGKILL);
        }
      };
      if (!zeros_first) fault();
      for (uint32_t rank = 0; rank < 5; ++rank) scene.ended(rank, 0);
      if (zeros_first) fault();
      scene.answer();
      REQUIRE(scene.finish() != nullptr);
      CHECK(scene.finish()->code == (host_lost ? 70 : 137));
    }
  }
}

TEST_CASE("n25: a host that has no room for a process is no fault of the program") {
  Scene scene = running(2);
  WorkerEnded m;
  m.attempt = 1;
  m.rank = 2;
  m.exit_code = 70;
  m.not_started = "cannot start a process: Resource temporarily unavailable";
  scene.say(1, m);
  scene.answer();
  CHECK(scene.starts.size() == 4);
  m.attempt = 2;
  m.exit_code = 126;
  scene.say(1, m);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 126);
}

TEST_CASE("the end of a job waits for what is being removed on disks, to a limit") {
  for (const bool answers : {true, false}) {
    CAPTURE(answers);
    Scene scene = running(1);
    for (const uint64_t step : {10u, 20u, 30u, 40u}) scene.save(step);
    scene.asked.clear();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ShardSaved m;
      m.attempt = 1;
      m.step = 50;
      m.shard = Shard{rank, 100, std::string(32, 'a'), std::string(32, 'b')};
      scene.say(0, m);
    }
    scene.answer_commits();
    scene.ended(0, 0);
    scene.ended(1, 0);
    scene.say(0, AttemptStopped{1, 1});
    CHECK(scene.finish() == nullptr);
    if (answers) scene.answer();
    if (!answers) scene.pass(11s);
    REQUIRE(scene.finish() != nullptr);
    CHECK(scene.finish()->code == 0);
  }
}

TEST_CASE("n13: an agent that does not stop its ranks is cut off, and a spare takes them") {
  Scene scene = running(2, 1);
  scene.save(5);
  scene.answers_stop = false;
  scene.ended(0, 1);
  scene.asked.clear();
  scene.say(0, AttemptStopped{1, 1});
  scene.pass(14s);
  CHECK(scene.count<Drop>() == 1);
  CHECK(scene.said_text("h2 did not stop its ranks in time"));
  CHECK(scene.said_text("the spare h3 takes the ranks of h2"));
  scene.answer();
  CHECK(scene.starts.size() == 4);
}

TEST_CASE("a host lost while stopping does not hold the relaunch up") {
  Scene scene = running(2, 1);
  scene.save(5);
  scene.answers_stop = false;
  scene.ended(0, 1);
  scene.asked.clear();
  scene.say(0, AttemptStopped{1, 1});
  scene.answers_stop = true;
  scene.down(1, HostEnd::silent);
  scene.answer();
  CHECK(scene.starts.size() == 4);
  CHECK(scene.policy->host_of(3) == 2);
}

TEST_CASE("ranks that loaded different states: named, and the checkpoint before is used") {
  Scene scene = running(2);
  scene.save(50);
  scene.save(100);
  scene.ended(0, 0, SIGKILL, 101);
  scene.answer();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    scene.say(scene.policy->host_of(rank),
              StateLoaded{2, rank, 100, rank == 2 ? "other" : "same", ""});
  }
  CHECK(scene.said_text("the state loaded by rank 2 differs"));
  scene.answer();
  CHECK(scene.starts.back().resume_step == 50);
}

TEST_CASE("an exchange is answered when every rank gave its blob") {
  Scene scene = running(2);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    scene.say(scene.policy->host_of(rank), ExchangeBlob{1, rank, 0, "blob" + std::to_string(rank)});
  }
  uint32_t results = 0;
  for (const Send& send : scene.asked) {
    const auto* m = std::get_if<ExchangeResult>(&send.message);
    if (m == nullptr) continue;
    ++results;
    REQUIRE(m->blobs.size() == 4);
    CHECK(m->blobs[3] == "blob3");
  }
  CHECK(results == 2);
}

TEST_CASE("a save that one rank could not write is refused to all and not committed") {
  Scene scene = running(1);
  ShardSaved m;
  m.attempt = 1;
  m.step = 7;
  m.shard.rank = 0;
  m.error = "No space left on device";
  scene.say(0, m);
  m.shard = Shard{1, 1, "d", "s"};
  m.error.clear();
  scene.say(0, m);
  CHECK(scene.committed.empty());
  const auto* result = std::get_if<SaveResult>(&scene.asked.back().message);
  REQUIRE(result != nullptr);
  CHECK(result->error.find("rank 0 on h1: No space left") != std::string::npos);
}

TEST_CASE("a checkpoint serves any number of ranks only if no rank has arrays of its own") {
  Scene scene = running(1);
  scene.save(5);
  CHECK(parse_manifest(scene.committed[5])->replicated);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ShardSaved m;
    m.attempt = 1;
    m.step = 6;
    m.shard = Shard{rank, 100, std::string(32, 'a'), std::string(32, 'b')};
    m.shard.own_arrays = rank == 1;
    scene.say(0, m);
  }
  scene.answer();
  REQUIRE(scene.committed.count(6) == 1);
  CHECK_FALSE(parse_manifest(scene.committed[6])->replicated);
}

namespace {

// What a rank that is left hands in after a failure.
void hand_in(Scene& scene, uint32_t rank, uint64_t step, const std::string& state,
             bool own = false) {
  ShardSaved m;
  m.attempt = scene.policy->attempt();
  m.step = step;
  m.shard = Shard{rank, 100, std::string(32, 'a'), state, own};
  scene.say(scene.policy->host_of(rank), m);
}

const std::string kState(32, 'b');

// A rank's state of that step is in its agent's memory.
void keep(Scene& scene, uint32_t rank, uint64_t step, bool own = false,
          const std::string& error = "") {
  ShardKept m;
  m.attempt = scene.policy->attempt();
  m.step = step;
  m.shard = Shard{rank, 100, std::string(32, 'a'), own ? "" : kState, own};
  m.error = error;
  scene.say(scene.policy->host_of(rank), m);
}

void keep_all(Scene& scene, uint64_t step, bool own = false) {
  for (uint32_t rank = 0; rank < scene.job.size; ++rank) keep(scene, rank, step, own);
}

}  // namespace

TEST_CASE("a state that the agents have in memory is gone on from, and no folder is read") {
  Scene scene = running(2);
  scene.save(10);
  keep_all(scene, 29);
  keep_all(scene, 30);
  CHECK(scene.count_sent<KeepResult>() == 4);
  CHECK(scene.said_text("keep each rank's state in memory, twice 1 MiB a rank"));
  const auto listed = scene.count_sent<ListCheckpoints>();
  scene.ended(1, 0, SIGKILL, 31);
  scene.answer();
  REQUIRE(scene.starts.size() == 4);
  for (const uint32_t host : {0u, 1u}) {
    const StartAttempt& start = scene.starts[2 + host];
    CHECK(start.resume_from == kResumeFromMemory);
    CHECK(start.resume_step == 30);
    REQUIRE(start.kept.size() == 2);
    CHECK(start.kept[0].attempt == 1);
    CHECK(start.kept[0].step == 30);
    CHECK(start.kept[0].shard.rank == 2 * host);
  }
  CHECK(scene.said_text("attempt 2 goes on from step 30, which the agents have in memory"));
  CHECK(scene.count_sent<ListCheckpoints>() == listed);
  CHECK(scene.count_sent<VerifyCheckpoint>() == 0);
  // The next attempt may end before it has kept anything.
  scene.fail_and_wait(3, 0, SIGKILL);
  REQUIRE(scene.starts.size() == 6);
  CHECK(scene.starts[4].resume_step == 30);
  CHECK(scene.starts[4].kept[0].attempt == 1);
}

TEST_CASE("of state that is the same on all ranks, one rank's is enough on each host") {
  Scene scene = running(2);
  keep_all(scene, 30);
  keep(scene, 1, 31);
  SUBCASE("both hosts have one") {
    keep(scene, 2, 31);
    scene.ended(0, 0, SIGKILL);
    scene.answer();
    CHECK(scene.starts.back().resume_step == 31);
    REQUIRE(scene.starts.back().kept.size() == 1);
    CHECK(scene.starts.back().kept[0].shard.rank == 2);
  }
  SUBCASE("one host has none") {
    scene.ended(0, 0, SIGKILL);
    scene.answer();
    CHECK(scene.starts.back().resume_step == 30);
  }
  SUBCASE("what is still said while the ranks are stopped counts") {
    scene.answers_stop = false;
    scene.ended(0, 0, SIGKILL);
    keep(scene, 3, 31);
    for (const uint32_t host : {0u, 1u}) scene.say(host, AttemptStopped{1, 2000 + host});
    scene.answer();
    CHECK(scene.starts.back().resume_step == 31);
  }
}

TEST_CASE("of states that differ, all ranks' are needed") {
  Scene scene = running(1);
  keep_all(scene, 30, true);
  keep(scene, 1, 31, true);
  scene.ended(0, 0, SIGKILL);
  scene.answer();
  CHECK(scene.starts.back().resume_step == 30);
  CHECK(scene.starts.back().kept.size() == 2);
}

TEST_CASE("states in memory go with their host, and are older than what was saved since") {
  Scene scene = running(2);
  scene.save(10);
  keep_all(scene, 30);
  SUBCASE("the host is lost") {
    scene.down(1, HostEnd::ended);
    scene.answer();
    scene.up_if_asked(1);
    scene.answer();
    CHECK(scene.starts.back().attempt == 2);
    CHECK(scene.starts.back().resume_step == 10);
    CHECK(scene.starts.back().kept.empty());
  }
  SUBCASE("a checkpoint is newer") {
    scene.save(40);
    scene.ended(1, 0, SIGKILL, 41);
    scene.answer();
    CHECK(scene.starts.back().resume_step == 40);
    CHECK(scene.starts.back().resume_from == "/ckpt/step-000000040");
  }
}

TEST_CASE("a state in memory that cannot be loaded is given up for the newest checkpoint") {
  Scene scene = running(1);
  scene.save(10);
  keep_all(scene, 30);
  scene.ended(1, 0, SIGKILL, 31);
  scene.answer();
  REQUIRE(scene.starts.back().resume_step == 30);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    scene.say(0, StateLoaded{2, rank, 30, kState, rank == 0 ? "its digest is another" : ""});
  }
  scene.answer();
  CHECK(scene.said_text("the state of step 30 in memory cannot be used: rank 0 on h1: its digest"));
  CHECK(scene.starts.back().attempt == 3);
  CHECK(scene.starts.back().resume_step == 10);
}

TEST_CASE("a state in memory that the program fails on twice is set aside") {
  Scene scene = running(1);
  scene.save(10);
  keep_all(scene, 30);
  scene.ended(1, 0, SIGKILL, 31);
  scene.answer();
  scene.fail_and_wait(0, 1);
  CHECK(scene.starts.back().resume_step == 30);
  scene.fail_and_wait(1, 7);
  CHECK(scene.said_text("the state of step 30 in memory is set aside"));
  CHECK(scene.starts.back().resume_step == 10);
}

TEST_CASE("states of an earlier attempt are no match for those of the present one") {
  Scene scene = running(1);
  scene.save(10);
  keep_all(scene, 30);
  scene.ended(1, 0, SIGKILL, 31);
  scene.answer();
  REQUIRE(scene.starts.back().resume_step == 30);
  // The program started over, for reasons of its own.
  keep_all(scene, 11);
  keep_all(scene, 12);
  scene.fail_and_wait(1, 0, SIGKILL);
  CHECK(scene.starts.back().resume_step == 12);
  CHECK(scene.starts.back().kept.front().attempt == 2);
}

TEST_CASE("what ranks say of steps that never are all ranks' is not remembered for ever") {
  Scene scene = running(1);
  for (uint64_t step = 1; step <= 100; ++step) keep(scene, 0, step);
  keep(scene, 1, 50);
  keep(scene, 1, 99);
  scene.ended(1, 0, SIGKILL);
  scene.answer();
  CHECK(scene.starts.back().resume_step == 100);
  KeptSteps kept;
  for (uint64_t step = 1; step <= 100; ++step) {
    KeptStep& one = kept[{step, 1}];
    one.shards.resize(2);
    one.holders.resize(2);
    one.shards[1] = Shard{1, 1, "d", "s"};
    forget_older(kept, 1);
  }
  CHECK(kept.size() == 2);
  CHECK(kept.begin()->first.first == 99);
}

TEST_CASE("a checkpoint that was set aside is not newer than a state in memory") {
  Scene scene = running(1);
  scene.save(20);
  scene.save(40);
  scene.ended(1, 0, SIGKILL, 41);
  scene.answer();
  REQUIRE(scene.starts.back().resume_step == 40);
  scene.fail_and_wait(0, 1);
  scene.fail_and_wait(1, 7);
  REQUIRE(scene.starts.back().resume_step == 20);
  keep_all(scene, 25);
  scene.fail_and_wait(1, 0, SIGKILL);
  CHECK(scene.starts.back().resume_step == 25);
}

TEST_CASE("a rank that has no memory for its state is named to all") {
  Scene scene = running(1);
  keep(scene, 0, 30);
  keep(scene, 1, 30, false, "there is no memory for a copy");
  const auto* result = std::get_if<KeepResult>(&scene.asked.back().message);
  REQUIRE(result != nullptr);
  CHECK(result->error == "rank 1 on h1: there is no memory for a copy");
  CHECK(scene.said_text("the state of step 30 is not kept in memory: rank 1 on h1"));
}

TEST_CASE("ranks that are left hand in their state: one is enough if it is the same on all") {
  Scene scene(2);
  scene.bring_up();
  scene.save(10);
  scene.answers_stop = false;
  scene.ended(1, 0, SIGKILL, 25);
  hand_in(scene, 2, 24, kState);
  CHECK(scene.count_sent<CommitCheckpoint>() == 1);  // others may still come
  scene.ended(0, 0, SIGTERM);
  hand_in(scene, 3, 25, kState);
  scene.answer();
  CHECK(scene.count_sent<CommitCheckpoint>() == 2);
  CHECK(scene.said_text("checkpoint of step 25 is committed, by the ranks that are left"));
  scene.answers_stop = true;
  for (const uint32_t host : {0u, 1u}) scene.say(host, AttemptStopped{1, 2000 + host});
  scene.answer();
  REQUIRE(scene.starts.size() == 4);
  CHECK(scene.starts.back().resume_step == 25);
}

TEST_CASE("a state that differs by rank cannot be completed without the rank that is gone") {
  Scene scene(2);
  scene.bring_up();
  scene.save(10);
  scene.ended(1, 0, SIGKILL, 25);
  SUBCASE("own arrays") {
    for (const uint32_t rank : {0u, 2u, 3u}) hand_in(scene, rank, 25, kState, true);
  }
  SUBCASE("other states") {
    hand_in(scene, 0, 25, kState);
    hand_in(scene, 2, 25, std::string(32, 'c'));
    hand_in(scene, 3, 25, kState);
  }
  SUBCASE("an older state") {
    for (const uint32_t rank : {0u, 2u, 3u}) hand_in(scene, rank, 9, kState);
  }
  scene.answer();
  CHECK(scene.count_sent<CommitCheckpoint>() == 1);
  CHECK(scene.starts.back().resume_step == 10);
}

TEST_CASE("what was handed in counts too when its ranks could not wait for the commit") {
  Scene scene(2);
  scene.bring_up();
  scene.ended(1, 0, SIGKILL, 25);
  hand_in(scene, 0, 25, kState);
  for (const uint32_t rank : {0u, 2u, 3u}) scene.ended(rank, 0, SIGKILL);
  scene.answer();
  CHECK(scene.count_sent<CommitCheckpoint>() == 1);
  CHECK(scene.starts.back().resume_step == 25);
}

TEST_CASE("a commit of what was handed in is waited for, and not for ever") {
  Scene scene(2);
  scene.bring_up();
  scene.answers_stop = false;
  scene.ended(1, 0, SIGKILL, 25);
  hand_in(scene, 0, 25, kState);
  scene.say(0, AttemptStopped{1, 2000});
  CHECK(scene.count_sent<CommitCheckpoint>() == 0);  // ranks of the other host may still come
  scene.pass(20s);
  CHECK(scene.said_text("h2 did not stop its ranks in time"));
  CHECK(scene.count_sent<CommitCheckpoint>() == 1);
  CHECK(scene.policy->next_deadline().has_value());
  scene.pass(20s);
  CHECK(scene.said_text("a checkpoint was not committed in time"));
  CHECK(scene.finish() == nullptr);
  CHECK(scene.policy->next_deadline().has_value());
}

TEST_CASE("old checkpoints are pruned, the newest stay") {
  Scene scene = running(1);
  for (uint64_t step = 10; step <= 60; step += 10) scene.save(step);
  CHECK(scene.pruned == std::vector<uint64_t>{10, 20, 30});
}

namespace {

LockTaken lock_of_another(bool alive, uint64_t touched_ns) {
  LockRecord holder{"other", 2, "h9", "login1", 30'000'000'000, "boot", "2026-11-30T18:00:00.000Z"};
  return {0, false, alive, touched_ns, holder, ""};
}

}  // namespace

TEST_CASE("n34: a folder that a living job holds is refused, and whose it is is said") {
  Scene scene(1);
  scene.lock = lock_of_another(true, 7);
  scene.bring_up();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 2);
  CHECK(scene.starts.empty());
  CHECK(
      scene.said_text("/ckpt is in use by job other (attempt 2 on h9, started on login1) since "
                      "2026-11-30T18:00:00.000Z"));
}

TEST_CASE("n34: a lock that may be dead is waited for a lease, and taken if nobody touches it") {
  Scene scene(1);
  scene.lock = lock_of_another(false, 7);
  scene.bring_up();
  CHECK(scene.finish() == nullptr);
  CHECK(scene.said_text("waiting up to 30 s to see whether it still lives"));
  for (int i = 0; i < 59; ++i) {
    scene.pass(500ms);
    scene.answer();
    CHECK(scene.asked_stale == 0);
  }
  CHECK(scene.starts.empty());
  scene.pass(1s);
  scene.answer();
  CHECK(scene.asked_stale == 7);
  CHECK(scene.finish() == nullptr);
  CHECK(scene.starts.size() == 1);
}

TEST_CASE("n34: a lock that is touched while it is watched is a living job's") {
  Scene scene(1);
  scene.lock = lock_of_another(false, 7);
  scene.bring_up();
  scene.pass(10s);
  scene.answer();
  CHECK(scene.finish() == nullptr);
  scene.lock.touched_ns = 8;
  scene.pass(500ms);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 2);
  CHECK(scene.starts.empty());
}

TEST_CASE("n34: every attempt takes the lock, on each host where folders are private") {
  Scene scene(2);
  scene.bring_up();
  CHECK(scene.count_sent<TakeLock>() == 1);
  scene.fail_and_wait(1, 0, SIGKILL);
  CHECK(scene.count_sent<TakeLock>() == 2);
  Scene apart(2);
  apart.blind = {1};
  apart.bring_up();
  CHECK(apart.count_sent<TakeLock>() == 2);
}

TEST_CASE("a folder that only some hosts share is refused") {
  Scene scene(3);
  scene.blind.insert(2);
  scene.start();
  for (uint32_t host = 0; host < 3; ++host) scene.up(host);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 2);
  CHECK(scene.said_text("/ckpt is one folder on h1, h2 and another on h3"));
}

TEST_CASE("a folder private to each host is committed on each") {
  Scene scene(3);
  scene.blind = {1, 2};
  scene.start();
  for (uint32_t host = 0; host < 3; ++host) scene.up(host);
  scene.answer();
  scene.save(10);
  uint32_t commits = 0;
  for (const Action& action : scene.all) {
    const auto* send = std::get_if<Send>(&action);
    commits += send != nullptr && std::holds_alternative<CommitCheckpoint>(send->message) ? 1 : 0;
  }
  CHECK(commits == 3);
}

TEST_CASE("the program's own checkpoint is handed on when it is the newer one") {
  Scene scene = running(1, 0, false);
  scene.say(0, ForeignCheckpoint{1, 0, 40, "/data/model-40.pt"});
  scene.ended(1, 0, SIGKILL, 45);
  scene.answer();
  REQUIRE(scene.starts.size() == 2);
  CHECK(scene.starts[1].resume_from == "/data/model-40.pt");
  CHECK(scene.starts[1].resume_step == 40);
}

TEST_CASE("whatever happens in whatever order, the policy keeps its promises") {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::minstd_rand random(seed);
    const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    Scene scene(2, 1);
    scene.start();
    for (int i = 0; i < 200 && scene.finish() == nullptr; ++i) {
      const uint32_t host = pick(3);
      switch (pick(10)) {
        case 0:
          scene.down(host, static_cast<HostEnd>(pick(4)));
          break;
        case 1:
        case 2:
        case 3:
          scene.up(host);
          break;
        case 4:
          scene.ended(pick(4), static_cast<int>(pick(3)), pick(2) == 0 ? SIGKILL : 0);
          break;
        case 5:
          scene.save(static_cast<uint64_t>(i));
          break;
        case 6:
          scene.pass(std::chrono::milliseconds(pick(20000)));
          break;
        case 7:
          scene.say(host, AttemptStopped{scene.policy->attempt(), 1});
          break;
        default:
          scene.answer();
          break;
      }
    }
    scene.event(StopRequested{SIGTERM});
    scene.answer();
    scene.pass(100s);
    scene.answer();
    INFO("seed ", seed);
    REQUIRE(scene.finish() != nullptr);
    CHECK(scene.count<Finish>() == 1);
    // Attempts only grow, and no step is committed by an attempt that was over.
    uint32_t attempt = 0;
    for (const Action& action : scene.all) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      if (const auto* start = std::get_if<StartAttempt>(&send->message)) {
        CHECK(start->attempt >= attempt);
        attempt = start->attempt;
      }
      if (const auto* commit = std::get_if<CommitCheckpoint>(&send->message)) {
        CHECK(commit->attempt == attempt);
      }
    }
  }
}

// ---- addresses ----

TEST_CASE("ranks of several machines start at proven addresses, those of one at once") {
  Scene scene(3);
  scene.start();
  scene.up(0);
  scene.up(1);
  scene.answer();
  CHECK(scene.starts.empty());
  CHECK(scene.dialled.empty());  // not before all are there
  scene.up(2);
  scene.answer();
  CHECK(scene.dialled.size() == 6);
  CHECK(scene.count_sent<OpenProof>() == 3);
  CHECK(scene.count_sent<CloseProof>() == 3);
  REQUIRE(scene.starts.size() == 3);
  CHECK(scene.starts[2].data_address == "10.0.0.3");
  CHECK(scene.starts[2].data_card == "eth0");
  CHECK(scene.starts[2].master_address == "10.0.0.1");

  for (const uint32_t hosts : {1u, 3u}) {
    Scene one(hosts);
    one.one_machine = true;
    one.start();
    for (uint32_t host = 0; host < hosts; ++host) one.up(host);
    one.answer();
    REQUIRE(one.starts.size() == hosts);
    CHECK(one.count_sent<OpenProof>() == 0);
    CHECK(one.starts[0].data_address == "127.0.0.1");
    CHECK(one.starts[0].master_address == "127.0.0.1");
    CHECK(one.starts[0].data_card.empty());
  }
}

TEST_CASE("c2: an address that leads to another machine is not used, whatever is preferred") {
  Scene scene(2);
  for (uint32_t host = 0; host < 2; ++host) {
    scene.more_addresses[host] = {{"docker0", "172.17.0.1", 16},
                                  {"data0", "10.9.0." + std::to_string(host + 1), 24}};
  }
  scene.dial = [](uint32_t, uint32_t, const std::string& address) {
    if (address == "172.17.0.1") return DialEnd::stranger;
    return address.starts_with("10.0.0.") ? DialEnd::refused : DialEnd::reached;
  };
  scene.start();
  scene.up(0);
  scene.up(1);
  scene.answer();
  REQUIRE(scene.starts.size() == 2);
  CHECK(scene.starts[0].data_address == "10.9.0.1");
  CHECK(scene.starts[1].data_address == "10.9.0.2");
  CHECK(scene.starts[1].data_card == "data0");
}

TEST_CASE("c3: a card that leads nowhere holds up nothing") {
  Scene scene(2);
  scene.more_addresses[1] = {{"veth9", "10.99.0.2", 24}};
  scene.dial = [](uint32_t, uint32_t, const std::string& address) {
    return address == "10.99.0.2" ? DialEnd::pending : DialEnd::reached;
  };
  scene.start();
  scene.up(0);
  scene.up(1);
  scene.answer();
  CHECK(scene.starts.size() == 2);

  // Where the better way may still come, it gets a moment.
  Scene slow(2);
  slow.more_addresses[1] = {{"veth9", "10.99.0.2", 24}};
  slow.dial = [](uint32_t, uint32_t, const std::string& address) {
    return address == "10.0.0.2" ? DialEnd::pending : DialEnd::reached;
  };
  slow.start();
  slow.up(0);
  slow.up(1);
  slow.answer();
  CHECK(slow.starts.empty());
  slow.pass(100ms);
  slow.answer();
  REQUIRE(slow.starts.size() == 2);
  CHECK(slow.starts[1].data_address == "10.99.0.2");
}

TEST_CASE("c10: hosts that do not reach each other end the first attempt with a table") {
  Scene scene(2);
  scene.dial = [](uint32_t, uint32_t to, const std::string&) {
    return to == 1 ? DialEnd::no_answer : DialEnd::reached;
  };
  scene.start();
  scene.up(0);
  scene.up(1);
  scene.answer();
  CHECK(scene.starts.empty());
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 69);
  CHECK(scene.said_text("h1 -> h2 at 10.0.0.2:4001 (eth0): no answer within 5 s"));
}

TEST_CASE("a host without any address of use is named") {
  Scene scene(2);
  scene.no_address.insert(1);
  scene.start();
  scene.up(0);
  scene.up(1);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 69);
  CHECK(scene.said_text("h2 has no address that another host could dial"));
}

TEST_CASE("a host lost while addresses are proven is tried as one that was never there") {
  Scene scene(2);
  scene.answers_proof = false;
  scene.start();
  scene.up(0);
  scene.up(1);
  scene.answer();
  scene.down(1, HostEnd::lost);
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 69);
  CHECK(scene.said_text("h2 is down"));

  Scene spare(2, 1);
  spare.dial = [](uint32_t, uint32_t to, const std::string&) {
    return to == 1 ? DialEnd::pending : DialEnd::reached;
  };
  spare.start();
  for (uint32_t host = 0; host < 3; ++host) spare.up(host);
  spare.answer();
  CHECK(spare.starts.empty());
  spare.down(1, HostEnd::silent);
  spare.answer();
  REQUIRE(spare.starts.size() == 2);
  CHECK(spare.starts[1].data_address == "10.0.0.3");
}

TEST_CASE("n18: hosts that do not reach each other any more are found, and one is replaced") {
  // A stall of ranks that made progress, or an attempt that came to nothing.
  for (const bool stall : {true, false}) {
    CAPTURE(stall);
    Scene scene(3, 1);
    scene.job.stall_timeout = 5s;
    scene.job.stall_action = StallAction::restart;
    scene.start();
    for (uint32_t host = 0; host < 4; ++host) scene.up(host);
    scene.answer();
    scene.dialled.clear();
    scene.dial = [](uint32_t from, uint32_t to, const std::string&) {
      return from == 1 && to == 2 ? DialEnd::no_answer : DialEnd::reached;
    };
    if (stall) {
      scene.say(0, Beat{scene.policy->attempt(), 0, {{0, 7}}});
      scene.stalls(2);
    } else {
      scene.ended(2, 1);
    }
    scene.answer();
    scene.pass(1s);
    scene.answer();
    CHECK(scene.said_text("h2 -> h3 at 10.0.0.3:4002 (eth0): no answer"));
    CHECK(scene.said_text("the spare h4 takes the ranks of h3"));
    CHECK(scene.finish() == nullptr);
    REQUIRE(scene.starts.size() == 6);
    CHECK(scene.starts[5].data_address == "10.0.0.4");
    CHECK(scene.dialled.size() == 12);
  }
}

TEST_CASE("n18: of hosts that do not reach each other, the one with most closed ways is replaced") {
  Scene scene = running(3, 1);
  scene.dial = [](uint32_t from, uint32_t to, const std::string&) {
    return from == 0 || to == 0 ? DialEnd::refused : DialEnd::reached;
  };
  scene.ended(2, 1);
  scene.answer();
  CHECK(scene.said_text("the spare h4 takes the ranks of h1"));
  CHECK(scene.starts.size() == 6);
}

TEST_CASE("n7: a host that is not there again in a few seconds gives way to a spare that is") {
  Scene scene = running(2, 1);
  scene.save(10);
  scene.down(1, HostEnd::lost);
  scene.answer();
  scene.pass(3s);
  scene.answer();
  CHECK(scene.starts.size() == 2);
  // Nothing of the job runs there any more.
  scene.pass(7s);
  scene.answer();
  CHECK(scene.said_text("the spare h3 takes the ranks of h2"));
  CHECK(scene.starts.size() == 4);
  // One that is not there itself is no help.
  Scene other = running(2, 1);
  other.save(10);
  other.down(2, HostEnd::silent);
  other.down(1, HostEnd::lost);
  other.answer();
  other.pass(4s);
  other.answer();
  other.up(1);
  other.answer();
  CHECK(other.starts.size() == 4);
}

TEST_CASE("a stop that is asked for while addresses are proven ends the job") {
  Scene scene(2);
  scene.dial = [](uint32_t, uint32_t, const std::string&) { return DialEnd::pending; };
  scene.start();
  scene.up(0);
  scene.up(1);
  scene.answer();
  scene.event(StopRequested{SIGINT});
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 130);
  CHECK(scene.starts.empty());
}

TEST_CASE(
    "an agent that says nothing about its addresses, or its dials, is waited for to a limit") {
  Scene mute(2);
  mute.answers_proof = false;
  mute.start();
  mute.up(0);
  mute.up(1);
  mute.answer();
  mute.pass(20s);
  REQUIRE(mute.finish() != nullptr);
  CHECK(mute.finish()->code == 69);
  CHECK(mute.said_text("h2: its agent did not tell its addresses within 15 s"));

  Scene busy(2);
  busy.dial = [](uint32_t, uint32_t, const std::string&) { return DialEnd::pending; };
  busy.start();
  busy.up(0);
  busy.up(1);
  busy.answer();
  busy.pass(20s);
  REQUIRE(busy.finish() != nullptr);
  CHECK(busy.finish()->code == 69);
  CHECK(busy.said_text("h1 -> h2 at 10.0.0.2:4001 (eth0): its agent did not say"));
}

TEST_CASE("what was proven holds until a host is replaced, whose own pairs are proven then") {
  Scene scene = running(3, 1);
  CHECK(scene.dialled.size() == 6);
  scene.save(10);
  scene.ended(1, 0, SIGKILL);
  scene.answer();
  CHECK(scene.starts.size() == 6);
  CHECK(scene.dialled.size() == 6);
  scene.dialled.clear();
  scene.save(20);
  scene.down(1, HostEnd::silent);
  scene.answer();
  scene.pass(61s);
  scene.answer();
  CHECK(scene.starts.size() == 9);
  CHECK(scene.dialled.size() == 4);
  for (const auto& [from, to] : scene.dialled) CHECK((from == 3 || to == 3));
  CHECK(scene.starts.back().data_address != "10.0.0.2");
  // One that has other addresses by now proves them anew.
  scene.dialled.clear();
  scene.more_addresses[0] = {{"eth1", "10.1.0.1", 24}};
  scene.save(30);
  scene.up(1);
  scene.down(2, HostEnd::lost);
  scene.answer();
  scene.pass(61s);
  scene.answer();
  scene.up(2);
  scene.answer();
  CHECK(scene.starts.size() == 12);
  CHECK(scene.dialled.size() == 5);
}

TEST_CASE("a network that is cut between attempts is waited for until the start deadline") {
  Scene scene = running(2, 1);
  scene.save(10);
  scene.dial = [](uint32_t, uint32_t, const std::string&) { return DialEnd::refused; };
  scene.down(1, HostEnd::silent);
  scene.answer();
  CHECK(scene.starts.size() == 2);
  CHECK(scene.finish() == nullptr);
  scene.dial = nullptr;
  scene.pass(1s);
  scene.answer();
  CHECK(scene.starts.size() == 4);

  scene.save(20);
  scene.job.max_restarts = 5;
  scene.up(1);
  scene.dial = [](uint32_t, uint32_t, const std::string&) { return DialEnd::refused; };
  scene.down(2, HostEnd::lost);
  scene.answer();
  scene.up(2);
  for (int i = 0; i < 100 && scene.finish() == nullptr; ++i) {
    scene.answer();
    scene.pass(1s);
  }
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 70);
}

TEST_CASE("frames of a hostile agent about addresses change nothing") {
  Scene scene(2);
  scene.start();
  scene.up(0);
  scene.up(1);
  scene.say(1, ProofOpened{999, 1, {{"eth0", "10.6.6.6", 8}}, "none asked"});
  scene.say(1, Dialled{0, {{0, 0, DialEnd::refused, 0}}});
  scene.say(1, Dialled{1, {{77, 99, DialEnd::refused, 0}, {0, 99, DialEnd::reached, 0}}});
  scene.answer();
  REQUIRE(scene.starts.size() == 2);
  scene.say(1, Dialled{1, {{0, 0, DialEnd::refused, 0}}});
  scene.say(1, ProofOpened{1, 1, {}, "late"});
  CHECK(scene.starts[1].data_address == "10.0.0.2");
  CHECK(scene.finish() == nullptr);
}

// ---- ranks that make no progress ----

TEST_CASE("a stall is warned of, by the rank that holds the others up, and less and less often") {
  Scene scene = running(2);
  scene.stopped = {3};
  scene.quiet = 60s;
  CHECK(scene.starts[0].stall_ns == 60'000'000'000);
  CHECK_FALSE(scene.starts[0].stall_asked);
  for (uint32_t rank = 0; rank < 4; ++rank) scene.stalls(rank);
  scene.answer();
  CHECK(scene.said_text("no progress for 60 s: rank 3 on h2 is stopped (state T)"));
  CHECK(scene.count_sent<LookAtRanks>() == 2);
  scene.pass(59s);
  CHECK(scene.count_sent<LookAtRanks>() == 2);
  scene.quiet = 120s;
  scene.pass(1s);
  scene.answer();
  CHECK(scene.said_text("no progress for 2 min 0 s: rank 3"));
  scene.pass(119s);
  CHECK(scene.count_sent<LookAtRanks>() == 4);
  scene.pass(1s);
  CHECK(scene.count_sent<LookAtRanks>() == 6);
  scene.answer();
  scene.stopped.clear();
  for (uint32_t rank = 0; rank < 3; ++rank) scene.moves(rank);
  CHECK_FALSE(scene.said_text("make progress again"));
  scene.moves(3);
  CHECK(scene.said_text("the ranks make progress again after "));
  CHECK(scene.count_sent<StopAttempt>() == 0);
  scene.all_end_well();
  CHECK(scene.finish()->code == 0);
}

TEST_CASE("a stall that is to be acted on kills the stalled rank at once and goes on") {
  Scene scene(2);
  scene.job.stall_timeout = 5s;
  scene.job.stall_asked = true;
  scene.job.stall_action = StallAction::restart;
  scene.start();
  for (const uint32_t host : {0u, 1u}) scene.up(host);
  scene.answer();
  CHECK(scene.starts[0].stall_asked);
  scene.save(10);
  scene.stopped = {1};
  scene.stalls(2);
  scene.answer();
  CHECK(scene.said_text("no progress for 5 s: rank 1 on h1 is stopped (state T)"));
  REQUIRE(scene.starts.size() == 4);
  CHECK(scene.starts.back().resume_step == 10);
  CHECK(scene.starts.back().restart_reason == "stalled");
  const auto is_stop = [](const Action& action) {
    const auto* send = std::get_if<Send>(&action);
    return send != nullptr && std::holds_alternative<StopAttempt>(send->message);
  };
  const auto found = std::find_if(scene.all.begin(), scene.all.end(), is_stop);
  REQUIRE(found != scene.all.end());
  const auto& stop = std::get<StopAttempt>(std::get<Send>(*found).message);
  CHECK(stop.failed);
  CHECK(stop.failed_rank == 1);
  CHECK(stop.kill_failed);
  // Old news of the attempt before changes nothing.
  scene.say(0, RankStalled{1, 0});
  scene.say(0, RanksSeen{1, 1, {}});
  scene.answer();
  CHECK(scene.starts.size() == 4);
}

TEST_CASE("where the ranks wait is asked for a quarter of the limit before a stall is acted on") {
  Scene scene(1);
  scene.job.stall_timeout = 8s;
  scene.job.stall_action = StallAction::restart;
  scene.answers_stacks = false;
  scene.start();
  scene.up(0);
  scene.answer();
  scene.stalls(0);
  scene.answer();
  CHECK(scene.count_sent<TakeStacks>() == 1);
  CHECK(scene.count_sent<StopAttempt>() == 0);
  // Who goes on meanwhile is not stopped, and can stall again.
  scene.moves(0);
  scene.pass(3s);
  CHECK(scene.count_sent<StopAttempt>() == 0);
  scene.stalls(0);
  scene.answer();
  CHECK(scene.count_sent<TakeStacks>() == 2);
  scene.pass(2s);
  CHECK(scene.count_sent<StopAttempt>() == 0);
  scene.pass(200ms);
  CHECK(scene.count_sent<StopAttempt>() == 1);
}

TEST_CASE("a stall without a way to go on ends with 70") {
  Scene scene(1, 0, false);
  scene.job.stall_action = StallAction::restart;
  scene.start();
  scene.up(0);
  scene.answer();
  scene.quiet = 60s;
  scene.stalls(0);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 70);
  CHECK(scene.finish()->cause.kind == Cause::Kind::stalled);
  CHECK(scene.finish()->cause.text.find("which rank holds them up cannot be told") !=
        std::string::npos);
}

TEST_CASE("an agent that does not say what its ranks do holds the verdict up for a second") {
  Scene scene = running(2);
  scene.answers_look = false;
  scene.stalls(0);
  scene.answer();
  CHECK_FALSE(scene.said_text("no progress"));
  scene.pass(1s);
  CHECK(scene.said_text("no progress for 60 s: rank 0 on h1"));
}

TEST_CASE("a rank that ends, or moves before it was looked at, is no stall") {
  Scene scene = running(1);
  scene.answers_look = false;
  scene.stalls(0);
  scene.stalls(1);
  scene.moves(0);
  scene.ended(1, 0);
  scene.pass(1s);
  CHECK_FALSE(scene.said_text("no progress"));
  scene.say(0, RankStalled{1, 99});
  scene.say(0, RanksSeen{1, 77, {}});
  CHECK(scene.finish() == nullptr);
}

// ---- hosts that are taken away ----

TEST_CASE("a preempted host's ranks save, and a spare takes them at no cost of the budget") {
  for (const bool saves : {true, false}) {
    Scene scene = running(2, 1);
    scene.job.max_restarts = 0;
    scene.save(5);
    scene.answers_stop = false;
    scene.say(1, Leaving{"its agent was told to end (SIGTERM)"});
    scene.say(1, Leaving{"again"});
    CHECK(scene.said_text("h2 is preempted: its agent was told to end (SIGTERM): stopping all"));
    CHECK(scene.count_sent<StopAttempt>() == 2);
    const auto& stop = std::get<StopAttempt>(scene.asked.back().message);
    CHECK(stop.grace_ns == 28'000'000'000u);
    CHECK_FALSE(stop.failed);
    if (saves) scene.save(6);
    for (uint32_t rank = 0; rank < 4; ++rank) scene.ended(rank, rank == 3 ? 143 : 0);
    for (uint32_t host = 0; host < 2; ++host) scene.say(host, AttemptStopped{1, 1});
    scene.answers_stop = true;
    scene.answer();
    REQUIRE(scene.starts.size() == 4);
    CHECK(scene.starts[2].resume_step == (saves ? 6 : 5));
    CHECK(scene.starts[2].restart_reason == "preempted");
    CHECK(scene.starts[2].places[0].rank == 0);
    CHECK(scene.starts[3].places[0].rank == 2);
    CHECK(scene.policy->host_of(2) == 2);
    CHECK(scene.policy->host_of(0) == 0);
    // The host that leaves is let go, and is no spare whatever comes.
    CHECK(scene.count_sent<Goodbye>() == 1);
    scene.down(1, HostEnd::ended);
    CHECK_FALSE(scene.said_text("spare lost"));
    scene.up(1);
    scene.say(2, Leaving{"too"});
    scene.answer();
    REQUIRE(scene.finish() != nullptr);
    CHECK(scene.finish()->cause.kind == Cause::Kind::preempted);
  }
}

TEST_CASE("a preemption without a spare ends with 75 when saved, else with TERM's code") {
  for (const bool saves : {true, false}) {
    for (const bool all : {true, false}) {
      Scene scene = running(2);
      scene.answers_stop = false;
      if (all) {
        scene.event(StopRequested{SIGUSR1});
        CHECK(scene.said_text("preempted by SIGUSR1: stopping all ranks within 28 s"));
      } else {
        scene.say(0, Leaving{"TERM"});
      }
      if (saves) scene.save(6);
      for (uint32_t rank = 0; rank < 4; ++rank) scene.ended(rank, 0);
      for (uint32_t host = 0; host < 2; ++host) scene.say(host, AttemptStopped{1, 1});
      REQUIRE(scene.finish() != nullptr);
      CHECK(scene.finish()->code == (saves ? 75 : all ? 128 + SIGUSR1 : 143));
      CHECK(scene.finish()->cause.kind == Cause::Kind::preempted);
      CHECK(scene.starts.size() == 2);
    }
  }
}

TEST_CASE("a stop that is asked for during a preemption is the last word") {
  for (const bool notice : {true, false}) {
    Scene scene = running(2, 1);
    scene.answers_stop = false;
    if (notice) {
      scene.event(StopRequested{SIGUSR1});
    } else {
      scene.say(0, Leaving{"TERM"});
    }
    scene.event(StopRequested{SIGTERM});
    CHECK(scene.count_sent<StopAttempt>() == 2);  // no shorter grace
    scene.save(9);
    for (uint32_t host = 0; host < 2; ++host) scene.say(host, AttemptStopped{1, 1});
    REQUIRE(scene.finish() != nullptr);
    CHECK(scene.finish()->code == 75);
    CHECK(scene.starts.size() == 2);
  }
}

TEST_CASE("a preemption is handled in every phase") {
  SUBCASE("gathering") {
    Scene scene(2, 1);
    scene.start();
    for (const uint32_t host : {0u, 2u}) scene.up(host);
    scene.say(0, Leaving{"TERM"});
    scene.up(1);
    scene.answer();
    CHECK(scene.starts.size() == 2);
    CHECK(scene.policy->host_of(0) == 2);
  }
  SUBCASE("preparing") {
    Scene scene(2, 1);
    scene.one_machine = true;
    scene.start();
    for (const uint32_t host : {2u, 0u, 1u}) scene.up(host);
    CHECK(scene.count_sent<ProbeDirectory>() > 0);
    scene.say(1, Leaving{"TERM"});
    scene.answer();
    REQUIRE(scene.starts.size() == 2);
    CHECK(scene.policy->host_of(2) == 2);
  }
  SUBCASE("no spare, before the start") {
    Scene scene(1);
    scene.start();
    scene.up(0);
    scene.say(0, Leaving{"TERM"});
    REQUIRE(scene.finish() != nullptr);
    CHECK(scene.finish()->code == 143);
    CHECK(scene.starts.empty());
  }
  SUBCASE("a rank of it that got the same TERM was told first") {
    Scene scene = running(2, 1);
    scene.job.max_restarts = 0;
    scene.save(5);
    scene.ended(3, 0, SIGTERM);
    scene.say(1, Leaving{"TERM"});
    scene.answer();
    CHECK(scene.starts.size() == 4);
    CHECK(scene.policy->host_of(3) == 2);
  }
  SUBCASE("a spare that leaves disturbs nothing") {
    Scene scene = running(2, 1);
    scene.say(2, Leaving{"TERM"});
    scene.answer();
    CHECK(scene.count_sent<StopAttempt>() == 0);
    CHECK(scene.count_sent<Goodbye>() == 1);
    scene.all_end_well();
    CHECK(scene.finish()->code == 0);
  }
}

// ---- hosts that fail again and again ----

TEST_CASE("i4: without a spare a host that failed is used again after its cool-down") {
  Scene scene = running(2);
  scene.save(10);
  const auto fail = [&] {
    const uint32_t connects = scene.connects(1);
    scene.down(1, HostEnd::ended);
    scene.answer();
    for (uint64_t step = 100; scene.connects(1) == connects && step < 700; ++step) {
      scene.pass(500ms);
    }
    scene.up(1);
    scene.answer();
    scene.say(0, Beat{0, scene.policy->attempt(), {{0, 100 + scene.starts.size()}}});
  };
  const auto wait_of = [&](Duration wait) {
    const Time before = scene.at;
    fail();
    CHECK(scene.at - before >= wait);
    CHECK(scene.at - before <= wait + 1s);
  };
  wait_of(0s);
  wait_of(10s);
  CHECK(scene.said_text("h2 failed 2 times: it is set aside for 10 s"));
  CHECK(scene.said_text("no spare can take the ranks of h2 now: waiting for 10 s"));
  wait_of(20s);
  wait_of(40s);
  CHECK_FALSE(scene.said_text("excluded"));
  // Excluded, but nobody else can hold its ranks.
  wait_of(300s);
  CHECK(scene.said_text("h2 failed 5 times: it is excluded from this run"));
  CHECK(scene.starts.size() == 12);
  CHECK(scene.finish() == nullptr);
}

TEST_CASE("i4: a host that failed five times is excluded, and everyone else keeps their ranks") {
  Scene scene = running(2, 2);
  scene.save(10);
  // Whoever holds rank 2 fails; of three hosts that take turns, none is to be used for ever.
  for (int i = 0; i < 40 && scene.finish() == nullptr; ++i) {
    const uint32_t host = scene.policy->host_of(2);
    CHECK(scene.policy->host_of(0) == 0);
    scene.down(host, HostEnd::ended);
    scene.answer();
    for (int k = 0; k < 400 && scene.starts.size() < 2u * static_cast<uint32_t>(i) + 4; ++k) {
      for (uint32_t other = 1; other < 4; ++other) scene.up_if_asked(other);
      scene.answer();
      scene.pass(1s);
    }
    scene.say(0, Beat{0, scene.policy->attempt(), {{0, 100u + static_cast<uint32_t>(i)}}});
  }
  CHECK(scene.finish() == nullptr);
  for (const char* name : {"h2", "h3", "h4"}) {
    CHECK(scene.said_text(std::string(name) + " failed 5 times: it is excluded from this run"));
  }
  CHECK_FALSE(scene.said_text("h1 failed"));
}

TEST_CASE("i4: whatever hosts do, they are used if the user says so") {
  Scene scene(1);
  scene.job.max_host_failures = 0;
  scene.start();
  scene.up(0);
  scene.answer();
  for (uint64_t i = 1; i < 20; ++i) {
    scene.down(0, HostEnd::ended);
    scene.answer();
    scene.up(0);
    scene.answer();
    scene.say(0, Beat{0, scene.policy->attempt(), {{0, i}}});
  }
  CHECK(scene.starts.size() == 20);
  CHECK_FALSE(scene.said_text("set aside"));
}

TEST_CASE("n17: a link that flaps costs one restart, then a spare takes the ranks of its host") {
  Scene scene = running(2, 1);
  scene.save(10);
  scene.down(1, HostEnd::lost);
  scene.answer();
  scene.up_if_asked(1);
  scene.answer();
  // What ran there ends at once or with the lease: the same host again is safe, another is not yet.
  CHECK(scene.starts.size() == 4);
  CHECK(scene.policy->host_of(2) == 1);
  scene.down(1, HostEnd::lost);
  scene.answer();
  CHECK(scene.said_text("h2 failed 2 times: it is set aside for 10 s"));
  scene.pass(9s);
  scene.answer();
  CHECK(scene.starts.size() == 4);
  scene.pass(1s);
  scene.answer();
  CHECK(scene.starts.size() == 6);
  CHECK(scene.policy->host_of(2) == 2);
  for (int i = 0; i < 20; ++i) {
    scene.up_if_asked(1);
    scene.down(1, HostEnd::lost);
    scene.pass(500ms);
  }
  CHECK(scene.starts.size() == 6);
  CHECK(scene.connects(1) < 6);
}

TEST_CASE("n38: with all spares used up the job waits, and goes on with whichever host returns") {
  for (const uint32_t back : {1u, 2u}) {
    Scene scene = running(2, 1);
    scene.save(10);
    scene.down(1, HostEnd::silent);
    scene.answer();
    CHECK(scene.policy->host_of(2) == 2);
    scene.down(2, HostEnd::silent);
    scene.answer();
    CHECK(scene.starts.size() == 4);
    for (int i = 0; i < 20; ++i) {
      for (const uint32_t host : {1u, 2u}) scene.refuse_if_asked(host);
      scene.pass(1s);
      scene.answer();
    }
    CHECK(scene.starts.size() == 4);
    CHECK(scene.finish() == nullptr);
    for (int i = 0; i < 40 && scene.starts.size() < 6; ++i) {
      scene.up_if_asked(back);
      scene.refuse_if_asked(3 - back);
      scene.answer();
      scene.pass(1s);
    }
    REQUIRE(scene.starts.size() == 6);
    CHECK(scene.policy->host_of(2) == back);
    CHECK(scene.policy->host_of(0) == 0);
    CHECK(scene.starts.back().resume_step == 10);
  }
}

TEST_CASE("a spare that comes ends the wait for a host that cools down") {
  Scene scene(2, 1);
  scene.start();
  scene.up(0);
  scene.up(1);
  scene.down(2, HostEnd::refused);
  scene.answer();
  scene.save(10);
  for (int i = 0; i < 2; ++i) {
    scene.down(1, HostEnd::ended);
    scene.answer();
    scene.up_if_asked(1);
    scene.answer();
  }
  CHECK(scene.starts.size() == 4);
  scene.pass(1s);
  scene.up_if_asked(2);
  scene.answer();
  CHECK(scene.starts.size() == 6);
  CHECK(scene.policy->host_of(2) == 2);
}

TEST_CASE("failures of ranks on one host in a row are worth a word, not the host") {
  Scene scene = running(2, 1);
  scene.job.max_restarts = 100;
  scene.save(10);
  for (const uint32_t rank : {2u, 3u, 0u, 2u, 3u}) scene.fail_and_wait(rank, 0, SIGKILL);
  CHECK_FALSE(scene.said_text("failures were of ranks on"));
  scene.fail_and_wait(2, 0, SIGKILL);
  CHECK(scene.said_text("the last 3 failures were of ranks on h2: it may be the host's fault"));
  CHECK(scene.policy->host_of(2) == 1);
}

TEST_CASE("i6: failures of one kind do not use up what others may need") {
  for (const bool given : {false, true}) {
    Scene scene(1);
    scene.job.max_host_failures = 0;
    if (given) scene.job.max_restarts = 10;
    scene.start();
    scene.up(0);
    scene.answer();
    for (int i = 0; i < 10; ++i) scene.fail_and_wait(0, 0, SIGKILL);
    REQUIRE(scene.finish() == nullptr);
    scene.down(0, HostEnd::ended);
    scene.answer();
    scene.pass(61s);
    CHECK((scene.finish() != nullptr) == given);
    if (given) CHECK(scene.finish()->code == 70);
  }
}

// ---- rules of the user ----

TEST_CASE("a rule ends the job where it would have gone on") {
  Scene scene(1);
  scene.job.rules = {*parse_rule("exit 77: stop")};
  scene.start();
  scene.up(0);
  scene.answer();
  scene.fail_and_wait(0, 5);
  CHECK(scene.starts.size() == 2);
  scene.fail_and_wait(0, 77);
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 77);
  CHECK(scene.finish()->from_worker);
  CHECK(scene.said_text("by the rule 'exit 77: stop'"));
  CHECK(scene.starts.size() == 2);
}

TEST_CASE("a rule goes on through a crash loop, without a way to go on, and to its number") {
  Scene scene(1, 0, false);
  scene.job.rules = {*parse_rule("log busy: restart")};
  scene.start();
  scene.up(0);
  scene.answer();
  for (int i = 0; i < 20 && scene.finish() == nullptr; ++i) {
    WorkerEnded m;
    m.attempt = scene.policy->attempt();
    m.exit_code = 3;
    m.last_lines = "the licence server is busy\n";
    scene.say(0, m);
    scene.answer();
    scene.pass(61s);
    scene.answer();
  }
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 70);
  CHECK(scene.starts.size() == 11);
}

TEST_CASE("a rule relaunches at no cost of the budget") {
  Scene scene(1);
  scene.job.rules = {*parse_rule("exit 9: ignore-budget")};
  scene.job.max_restarts = 1;
  scene.start();
  scene.up(0);
  scene.answer();
  for (int i = 0; i < 10; ++i) scene.fail_and_wait(0, 9);
  CHECK(scene.finish() == nullptr);
  CHECK(scene.starts.size() == 11);
  scene.fail_and_wait(0, 8);
  CHECK(scene.finish() == nullptr);
  scene.fail_and_wait(0, 8);
  CHECK(scene.finish() != nullptr);
}

TEST_CASE("a rule excludes the host of a failure, whose ranks go to a spare") {
  Scene scene(2, 1);
  scene.job.rules = {*parse_rule("signal BUS: exclude-host")};
  scene.start();
  for (uint32_t host = 0; host < 3; ++host) scene.up(host);
  scene.answer();
  scene.save(5);
  scene.ended(3, 0, SIGBUS);
  scene.answer();
  CHECK(scene.said_text("h2 is excluded from this run"));
  CHECK(scene.policy->host_of(3) == 2);
  CHECK(scene.starts.size() == 4);
  // It is up, and no spare all the same.
  scene.down(2, HostEnd::silent);
  scene.answer();
  CHECK(scene.policy->host_of(3) == 2);
}

TEST_CASE("a rule about stalls acts where they are only warned of") {
  Scene scene(1);
  scene.job.rules = {*parse_rule("stall: stop")};
  scene.start();
  scene.up(0);
  scene.answer();
  scene.stalls(0);
  scene.answer();
  scene.pass(60s);
  scene.answer();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->code == 70);
  CHECK(scene.finish()->cause.kind == Cause::Kind::stalled);
}

TEST_CASE("a rule starts a program again that could not be run") {
  Scene scene(1);
  scene.job.rules = {*parse_rule("exit 127: restart")};
  scene.start();
  scene.up(0);
  scene.answer();
  WorkerEnded m;
  m.attempt = 1;
  m.exit_code = 127;
  m.not_started = "'train' was not found in PATH";
  scene.say(0, m);
  scene.answer();
  CHECK(scene.starts.size() == 2);
}

// ---- ranks that are slow ----

TEST_CASE("n12: a rank that others wait for is named, once, and nothing is done to it") {
  Scene scene = running(2);
  const auto beats = [&](uint64_t from, uint64_t to, uint32_t slow) {
    for (uint64_t step = from; step < to; ++step) {
      const auto at = static_cast<int64_t>(step) * 1'000'000'000;
      for (uint32_t host = 0; host < 2; ++host) {
        Beat beat{at, 1, {}};
        for (uint32_t rank = 2 * host; rank < 2 * host + 2; ++rank) {
          beat.steps.push_back({rank, step, step * (rank == slow ? 100'000'000 : 800'000'000)});
        }
        scene.say(host, beat);
      }
    }
  };
  beats(1, 40, 3);
  CHECK(
      scene.said_text("rank 3 on h2 is slow: it takes 0.9 s of its own for a step, others 0.2 s"));
  uint32_t told = 0;
  for (const Action& action : scene.all) {
    const auto* say = std::get_if<Say>(&action);
    told += say != nullptr && say->text.find("is slow") != std::string::npos ? 1 : 0;
  }
  CHECK(told == 1);
  CHECK(scene.count_sent<StopAttempt>() == 0);
  // Nobody speaks for another host's ranks.
  scene.say(0, Beat{0, 1, {{3, 1, 0}, {77, 1, 0}}});
  beats(40, 80, 9);
  CHECK(scene.said_text("rank 3 on h2 is as fast as others again"));
  scene.all_end_well();
  REQUIRE(scene.finish() != nullptr);
  CHECK(scene.finish()->slow.size() == 1);
}
