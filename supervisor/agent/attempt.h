// One attempt on this host: its workers from their start until no process is left.
//
//   running    workers run, or their main processes have ended by themselves
//   stopping   TERM was sent; until the grace ends or all main processes have ended
//   killing    KILL to the whole tree, round after round
//   gone       no descendant of the agent is left
//
// A main process that ends is told at once and leaves its own children alone: only a stop kills.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "supervisor/agent/kept_copies.h"
#include "supervisor/agent/launcher_link.h"
#include "supervisor/agent/memory_kills.h"
#include "supervisor/agent/stacks.h"
#include "supervisor/agent/worker.h"
#include "supervisor/agent/worker_socket.h"

namespace hvd {

class Attempt {
 public:
  // Starts all workers and tells of each that it runs or could not. `folder` is for sockets.
  Attempt(Poller& poller, LauncherLink& link, WorkerSocket& socket, KeptCopies& kept,
          StartAttempt start, WorkerSurroundings around, const std::string& folder);

  uint32_t number() const { return start_.attempt; }
  bool gone() const { return phase_ == Phase::gone; }
  // Nobody told it to stop.
  bool is_running() const { return phase_ == Phase::running; }

  // What the loop heard from the poller; `index` is from the poll name.
  void worker_ended(uint64_t index);
  void output_ready(uint64_t index, Stream which);
  void input_ready(uint64_t index);
  void notified(uint64_t index);
  // What came over wire 2.
  void heard(WorkerNews news);

  void stop(const StopAttempt& stop, Time now);
  // All processes of the attempt stand still, or go on. One that is being stopped is let.
  void suspend();
  void resume();
  // Ranks that may still move to another memory cgroup are looked at.
  void note_memory();
  void grant(const Credit& credit);
  // Of all workers.
  std::vector<OutputStream*> streams();
  // For a launcher that knows none.
  void tell_steps_again();
  void input(const Input& input);
  void show(const LookAtRanks& look, Time now);
  // Those that run.
  std::vector<RankProcess> processes() const;
  // Does what is due.
  void act(Time now);
  std::optional<Time> deadline() const;

  // Steps that changed since the last call.
  std::vector<RankStep> take_changed_steps();
  // Workers' own orphans that ended become ours to reap.
  void reap_orphans() { hvd::reap_orphans(running_pids()); }
  void watch(bool output, bool messages);
  // The output that was not sent yet, once the attempt is gone. Pipes are closed by then.
  std::vector<OutputStream> take_streams();

 private:
  enum class Phase { running, stopping, killing, gone };

  std::vector<Guest> guests() const;
  void tell_start(Worker& worker, const std::optional<SpawnFailure>& failure);
  Worker* find(uint32_t rank);
  Worker* at(uint64_t index);
  std::vector<RankStep> known_steps();
  std::vector<pid_t> running_pids() const;
  void take_notifications(Worker& worker);
  void tell_failure(uint32_t rank);
  Killer killer_of(const Worker& worker);
  void pump_input(Worker& worker);
  void kill_round(Time now);
  bool judges_progress() const;
  void look(Time now);

  LauncherLink& link_;
  WorkerSocket& socket_;
  KeptCopies& kept_;
  const StartAttempt start_;
  std::vector<std::unique_ptr<Worker>> workers_;  // by index
  Phase phase_ = Phase::running;
  std::optional<StopAttempt> failure_;  // the stop that named a failed rank
  Time kill_at_{};                      // when stopping
  Time next_round_{};                   // when killing
  Duration round_pause_{};
  Time killing_since_{};
  bool told_slow_ = false;
  bool suspended_ = false;
  MemoryKills memory_kills_;
  int memory_looks_ = 0;
  const Duration look_period_;
  Time last_look_, next_look_;
};

}  // namespace hvd
