// The agent proper: one loop over wire 1, wire 2, the workers' ends and output, the keeper and the
// task thread. Nothing in it waits but the poller.
//
// It ends when the launcher said Goodbye or is gone, after the workers were stopped; at once, with
// KILL to all, when the lease is over or the keeper is dead. Where the job survives its launcher,
// the agent goes on without one, for a while, and lets launchers attach (attach_door.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/message.h"
#include "base/poller.h"
#include "supervisor/agent/address_proof.h"
#include "supervisor/agent/attach_door.h"
#include "supervisor/agent/attempt.h"
#include "supervisor/agent/directory_lock.h"
#include "supervisor/agent/facts.h"
#include "supervisor/agent/keeper.h"
#include "supervisor/agent/kept_copies.h"
#include "supervisor/agent/launcher_link.h"
#include "supervisor/agent/lease.h"
#include "supervisor/agent/reserved_port.h"
#include "supervisor/agent/task_thread.h"
#include "supervisor/agent/worker_socket.h"

namespace hvd {

struct AgentOptions {
  std::string job;
  uint32_t host = 0;    // index in the job's list of hosts
  bool attach = false;  // to the agent that runs already
};

class AgentLoop {
 public:
  AgentLoop(AgentOptions options, AgentSeat seat);

  // Until the end; the exit code.
  int run();

 private:
  enum class Parting { none, goodbye, launcher_gone };

  // One alternative of ToAgent each.
  void handle(const LauncherHello& message);
  void handle(const Echo& message);
  void handle(const OpenProof& message);
  void handle(const DialPeers& message);
  void handle(const CloseProof& message);
  void handle(StartAttempt& message);
  void handle(const StopAttempt& message);
  void handle(const Credit& message);
  void handle(const ExchangeResult& message) { pass_on(message); }
  void handle(const SaveResult& message) { pass_on(message); }
  void handle(const LoadResult& message) { pass_on(message); }
  void handle(const KeepResult& message) { pass_on(message); }
  void handle(const ProbeDirectory& message);
  void handle(const TakeLock& message);
  void handle(const ListCheckpoints& message);
  void handle(const VerifyCheckpoint& message);
  void handle(const CommitCheckpoint& message);
  void handle(const PruneCheckpoints& message);
  void handle(const WriteJobFile& message);
  void handle(const ReadJobFile& message);
  void handle(const LookAtRanks& message);
  void handle(const TakeStacks& message);
  void handle(const Suspend& message);
  void handle(const Resume& message);
  void handle(const Goodbye& message);
  void handle(const Input& message);
  void handle(const TakeOutput& message);

  template <class M>
  void pass_on(const M& message);
  // Gives the task thread a message to perform(), or answers that it is too busy.
  template <class Answer, class M>
  void submit(const M& message);

  bool set_up();
  void take_messages();
  void take_news(std::vector<WorkerNews> news);
  void lose_launcher();
  void look_at_door(Time now);
  std::string refusal_of(const LauncherHello& hello, Time now) const;
  void let_in(AttachCaller caller, Time now);
  AgentHello own_hello() const;
  Held what_is_held() const;
  void open_door(Duration survival);
  void dispatch(const Ready& ready);
  void watch();
  std::optional<Time> deadline() const;
  void act(Time now);
  void beat(Time now);
  void watch_for_leave();
  void tell_leave();
  void keep_port(ReservedPort port);
  void close_attempt();
  void forget_oldest_output();
  void part(Parting parting, Duration grace);
  // The exit code once there is nothing left to do.
  std::optional<int> verdict(Time now);

  const AgentOptions options_;
  AgentSeat seat_;
  const HostFacts facts_;
  const uint64_t file_limit_;  // the workers', who get what a login gives
  Poller poller_;
  LauncherLink link_;
  Lease lease_;
  AddressProof proof_;
  std::optional<WorkerSocket> socket_;
  std::optional<TaskThread> tasks_, stacks_;
  std::shared_ptr<DirectoryLock> lock_;
  std::optional<ReservedPort> port_;

  bool greeted_ = false;  // LauncherHello came
  uint64_t session_ = 0;
  std::string launcher_;            // who it is, for people
  bool survives_ = false;           // the job survives its launcher
  std::optional<AttachDoor> door_;  // then
  StartAttempt last_start_;         // then: of the newest attempt
  std::string host_name_;
  Duration failure_grace_{};
  Time next_beat_{};
  bool suspended_ = false;         // nobody reads beats
  std::optional<WatchedFd> term_;  // readable when TERM came
  bool told_leave_ = false;
  uint32_t last_attempt_ = 0;
  bool any_attempt_ = false;
  KeptCopies kept_;
  std::optional<Attempt> attempt_;
  std::vector<OutputStream> left_output_;  // of attempts that are gone, oldest first
  Parting parting_ = Parting::none;
  bool keeper_dead_ = false;
};

}  // namespace hvd
