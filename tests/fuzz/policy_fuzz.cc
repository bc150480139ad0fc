// What agents that may be hostile tell the launcher of a running job, in any order. The input is a
// list of entries: a byte that says what happens, to which host, then for a message its length in
// two bytes and its body. An honest answer to all that agents were asked is one entry.
#include "supervisor/policy.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;
using namespace std::chrono_literals;

namespace {

constexpr uint32_t kHosts = 3;  // the last one is a spare
constexpr const char* kFolder = "/ckpt";

Job make_job(bool checkpoints) {
  Job job;
  for (uint32_t i = 0; i < kHosts; ++i) {
    Host host;
    host.name = host.address = "h" + std::to_string(i + 1);
    host.slots = 2;
    host.spare = i + 1 == kHosts;
    job.hosts.push_back(host);
  }
  job.id = "job";
  job.size = 4;
  job.argv = {"train"};
  if (checkpoints) job.checkpoint_dir = kFolder;
  return job;
}

// Folders that agents are told come from the job, never from an agent.
struct CheckFolders {
  bool checkpoints;
  template <class M>
  void operator()(const M& message) const {
    if constexpr (requires { message.dir; }) HVD_CHECK(checkpoints && message.dir == kFolder);
  }
  void operator()(const StartAttempt& m) const {
    HVD_CHECK(m.argv == std::vector<std::string>{"train"} && m.set.empty());
    HVD_CHECK(m.checkpoint_dir == (checkpoints ? kFolder : ""));
  }
};

class Scene {
 public:
  explicit Scene(bool checkpoints)
      : checkpoints_(checkpoints),
        job_(make_job(checkpoints)),
        policy_(job_, *place(job_.hosts, job_.size), 1) {
    take(policy_.start(at_));
  }

  void event(const Event& event) { take(policy_.step(event, at_)); }
  void say(uint32_t host, FromAgent message) { event(AgentSaid{host, std::move(message)}); }
  void up(uint32_t host) {
    AgentHello hello;
    hello.boot_id = job_.hosts[host].name;
    event(HostUp{host, hello, "10.0.0." + std::to_string(host + 1), "10.0.0.99"});
  }
  void pass(Duration time) {
    at_ += time;
    event(Tick{});
  }
  void answer() {
    std::vector<Send> asked;
    asked.swap(asked_);
    for (const Send& send : asked) {
      std::visit([&](const auto& m) { answer_one(send.host, m); }, send.message);
    }
  }

 private:
  void take(const Actions& actions) {
    for (const Action& action : actions) {
      HVD_CHECK(!finished_);
      if (const auto* send = std::get_if<Send>(&action)) {
        HVD_CHECK(send->host < kHosts);
        std::visit(CheckFolders{checkpoints_}, send->message);
        asked_.push_back(*send);
      } else if (const auto* connect = std::get_if<Connect>(&action)) {
        HVD_CHECK(connect->host < kHosts);
      } else if (const auto* finish = std::get_if<Finish>(&action)) {
        HVD_CHECK(finish->code >= 0 && finish->code <= 255);
        finished_ = true;
      }
    }
  }

  template <class M>
  void answer_one(uint32_t, const M&) {}
  void answer_one(uint32_t host, const StopAttempt& m) { say(host, AttemptStopped{m.attempt, 1}); }
  void answer_one(uint32_t host, const OpenProof& m) {
    say(host,
        ProofOpened{m.request, 4000, {{"eth0", "10.0.0." + std::to_string(host + 1), 24}}, ""});
  }
  void answer_one(uint32_t host, const DialPeers& m) {
    Dialled answer{m.round, {}};
    for (const DialTarget& target : m.targets) {
      answer.results.push_back({target.host, 0, DialEnd::reached, 0});
    }
    say(host, answer);
  }
  void answer_one(uint32_t host, const ProbeDirectory& m) {
    say(host, DirectoryProbed{m.request, true, ""});
  }
  void answer_one(uint32_t host, const TakeLock& m) {
    say(host, LockTaken{m.request, true, false, 0, {}, ""});
  }
  void answer_one(uint32_t host, const ListCheckpoints& m) {
    say(host, CheckpointsListed{m.request, {}, 0, {}, ""});
  }
  void answer_one(uint32_t host, const CommitCheckpoint& m) { say(host, Performed{m.request, ""}); }

  const bool checkpoints_;
  const Job job_;
  Time at_{1000s};
  Policy policy_;
  std::vector<Send> asked_;
  bool finished_ = false;
};

void take_message(Scene& scene, uint32_t host, std::string_view& text) {
  const size_t low = take_byte(text), high = take_byte(text);
  const std::string_view body = text.substr(0, low | high << 8);
  text.remove_prefix(body.size());
  if (auto message = parse_from_agent(body)) scene.say(host, std::move(*message));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr Duration kPauses[] = {1ms, 1s, 61s, 1h};
  std::string_view text = text_of(data, size);
  Scene scene(take_byte(text) % 2 == 1);
  while (!text.empty()) {
    const uint8_t entry = take_byte(text);
    const uint32_t host = (entry >> 4) % kHosts;
    switch (entry & 7) {
      case 0:
        scene.up(host);
        break;
      case 1:
        scene.event(HostDown{host, static_cast<HostEnd>(take_byte(text) % 4), "gone"});
        break;
      case 2:
        scene.pass(kPauses[take_byte(text) % std::size(kPauses)]);
        break;
      case 3:
        scene.event(StopRequested{take_byte(text) % 2 == 0 ? 2 : 15});
        break;
      case 4:
        scene.answer();
        break;
      default:
        take_message(scene, host, text);
    }
  }
  return 0;
}
