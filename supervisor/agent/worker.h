// One rank's process in one attempt, and all that belongs to it: its end, its output, what it says
// about itself. Passive: the attempt decides, the loop polls.
#pragma once

#include <optional>
#include <string>

#include "base/message.h"
#include "base/process.h"
#include "supervisor/agent/environment.h"
#include "supervisor/agent/input_stream.h"
#include "supervisor/agent/notify_socket.h"
#include "supervisor/agent/output_stream.h"
#include "supervisor/agent/progress.h"
#include "supervisor/agent/pulse.h"

namespace hvd {

class Worker {
 public:
  // `index` names it to the poller: its place among this host's workers.
  Worker(Poller& poller, uint64_t index, const StartAttempt& start, const Place& place);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Starts the process; `folder` takes its notification socket. On failure the worker stays without
  // a process and its output is at its end.
  std::optional<SpawnFailure> start(const StartAttempt& start, WorkerSurroundings around,
                                    const std::string& folder);

  uint32_t rank() const { return place_.rank; }
  pid_t pid() const { return child_.pid; }
  // The main process runs, or its end was not taken yet.
  bool running() const { return child_.pid > 0; }
  // To the main process, and CONT, so that a stopped one can act on it.
  void terminate();
  void kill();
  bool killed() const { return killed_; }
  // How the main process ended; its pidfd must be readable.
  Ending take_end();

  OutputStream& stream(Stream which) { return which == Stream::out ? out_ : err_; }
  // There if the rank was given the launcher's standard input.
  std::optional<InputStream>& input() { return input_; }
  Progress& progress() { return progress_; }
  Pulse& pulse() { return pulse_; }
  // Reads how far it is, and whether it goes on.
  Pulse::Change look(Time now);
  RankView view(Time now) const;
  std::vector<Notification> take_notifications();
  // `output` and `messages`: whether the loop has room for these.
  void watch(bool output, bool messages);

  bool joined = false;         // wire 2
  bool finalized = false;      // said so on wire 2
  uint64_t reported_step = 0;  // last one sent in a Beat

 private:
  SpawnResult spawn_with_pipes(SpawnSpec& spec, bool input);

  Poller& poller_;
  const uint64_t index_;
  const uint32_t attempt_;
  const uint64_t credit_;
  bool keep_output_ = false;
  const Place place_;
  Child child_;
  OutputStream out_, err_;
  std::optional<InputStream> input_;
  std::optional<NotifySocket> notify_;
  bool killed_ = false;
  Progress progress_;
  Pulse pulse_;
  const bool output_counts_;  // as progress
  uint64_t seen_signs_ = 0, seen_output_ = 0;
};

}  // namespace hvd
