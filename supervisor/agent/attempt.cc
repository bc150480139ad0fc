#include "supervisor/agent/attempt.h"

#include <algorithm>
#include <csignal>
#include <type_traits>
#include <utility>

#include "supervisor/agent/binding.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
// Between two rounds of KILL: short at first, since most trees die at once.
constexpr Duration kFirstPause = 1ms;
constexpr Duration kLongestPause = 50ms;
// A tree that is not dead by then is waiting in the kernel, and the user should know.
constexpr Duration kSlowDeath = 5s;
// A program or its wrapper that moves to another cgroup does so at its start.
constexpr int kMemoryLooks = 10;
// Progress is looked at so many times within the stall limit, but within these bounds.
constexpr int kLooksPerLimit = 8;
constexpr Duration kShortestLook = 20ms;
constexpr Duration kLongestLook = 1s;

// Of EXTEND_TIMEOUT_USEC.
Duration extension(uint64_t us) {
  constexpr uint64_t kNsPerUs = 1000;
  return bounded(us > UINT64_MAX / kNsPerUs ? UINT64_MAX : us * kNsPerUs);
}

}  // namespace

Attempt::Attempt(Poller& poller, LauncherLink& link, WorkerSocket& socket, KeptCopies& kept,
                 StartAttempt start, WorkerSurroundings around, const std::string& folder)
    : link_(link),
      socket_(socket),
      kept_(kept),
      start_(std::move(start)),
      look_period_(std::clamp<Duration>(bounded(start_.stall_ns) / kLooksPerLimit, kShortestLook,
                                        kLongestLook)),
      last_look_(now()),
      next_look_(last_look_ + look_period_) {
  const auto local_size = static_cast<uint32_t>(start_.places.size());
  kept_.keep_only(start_.kept);
  socket_.begin(start_.attempt, guests());
  const Result<Topology> topology =
      start_.binding == Binding::none ? Result<Topology>(Topology{}) : read_topology();
  for (const Place& place : start_.places) {
    workers_.push_back(std::make_unique<Worker>(poller, workers_.size(), start_, place));
    std::optional<SpawnFailure> failure;
    if (topology) {
      around.processors =
          processors_of(*topology, start_.binding, start_.machine_first + place.local_rank,
                        std::max(start_.machine_size, local_size));
      failure = workers_.back()->start(start_, around, folder);
    } else {
      failure = SpawnFailure{"it cannot be bound: " + topology.error().text, 126};
    }
    tell_start(*workers_.back(), failure);
  }
}

std::vector<Guest> Attempt::guests() const {
  std::vector<Guest> guests;
  for (const Place& place : start_.places) {
    Guest& guest = guests.emplace_back();
    guest.welcome = {start_.attempt,
                     place.rank,
                     start_.size,
                     place.local_rank,
                     static_cast<uint32_t>(start_.places.size()),
                     start_.data_address,
                     start_.secret,
                     {}};
    std::optional<KeptCopies::Given> given = kept_.give(place.rank, start_.kept);
    if (!given) continue;
    guest.welcome.kept = {given->state};
    guest.kept = std::move(given->memory);
  }
  return guests;
}

void Attempt::tell_start(Worker& worker, const std::optional<SpawnFailure>& failure) {
  if (!failure) {
    link_.send(WorkerStarted{number(), worker.rank(), worker.pid()});
    return;
  }
  WorkerEnded ended;
  ended.attempt = number();
  ended.rank = worker.rank();
  ended.exit_code = failure->code;
  ended.not_started = failure->text;
  link_.send(ended);
  worker.stream(Stream::out).pump(link_);
  worker.stream(Stream::err).pump(link_);
}

Worker* Attempt::find(uint32_t rank) {
  for (const auto& worker : workers_) {
    if (worker->rank() == rank) return worker.get();
  }
  return nullptr;
}

Worker* Attempt::at(uint64_t index) {
  return index < workers_.size() ? workers_[index].get() : nullptr;
}

std::vector<RankStep> Attempt::known_steps() {
  std::vector<RankStep> steps;
  for (const auto& worker : workers_) {
    Progress& progress = worker->progress();
    progress.refresh();
    if (progress.step() == 0) continue;
    steps.push_back({worker->rank(), progress.step(), progress.in_calls_ns()});
  }
  return steps;
}

std::vector<RankStep> Attempt::take_changed_steps() {
  std::vector<RankStep> steps;
  for (const RankStep& known : known_steps()) {
    Worker& worker = *find(known.rank);
    if (worker.reported_step == known.step) continue;
    worker.reported_step = known.step;
    steps.push_back(known);
  }
  return steps;
}

std::vector<RankProcess> Attempt::processes() const {
  std::vector<RankProcess> running;
  for (const auto& worker : workers_) {
    if (worker->running()) running.push_back({worker->rank(), worker->pid()});
  }
  return running;
}

std::vector<pid_t> Attempt::running_pids() const {
  std::vector<pid_t> pids;
  for (const auto& worker : workers_) {
    if (worker->running()) pids.push_back(worker->pid());
  }
  return pids;
}

void Attempt::worker_ended(uint64_t index) {
  Worker* worker = at(index);
  if (worker == nullptr || !worker->running()) return;
  // What it said before it ended counts, and must be heard before its end is told.
  for (WorkerNews& news : socket_.receive_last(worker->rank())) heard(std::move(news));
  take_notifications(*worker);
  const Killer killer = killer_of(*worker);
  const Ending ending = worker->take_end();
  worker->stream(Stream::err).hold_rest();
  WorkerEnded ended;
  ended.attempt = number();
  ended.rank = worker->rank();
  ended.exit_code = ending.exit_code;
  ended.signal = ending.signal;
  ended.killer = killer;
  ended.left_early =
      ending.signal == 0 && ending.exit_code == 0 && worker->joined && !worker->finalized;
  ended.last_lines = worker->stream(Stream::err).tail();
  ended.steps = known_steps();
  link_.send(ended);
  worker->stream(Stream::err).pump(link_);
  next_round_ = Time();
}

// Asked while the process is a zombie: then it still has a name. The agent's own KILL is known.
Killer Attempt::killer_of(const Worker& worker) {
  if (phase_ == Phase::killing || worker.killed()) return Killer::agent;
  return ended_by(worker.pid()) == SIGKILL ? memory_kills_.killer_of(worker.pid())
                                           : Killer::unknown;
}

void Attempt::note_memory() {
  if (memory_looks_++ >= kMemoryLooks) return;
  for (const pid_t pid : running_pids()) memory_kills_.note(pid);
}

void Attempt::suspend() {
  if (phase_ != Phase::running || suspended_) return;
  suspended_ = true;
  stop_descendants();
}

void Attempt::resume() {
  if (!std::exchange(suspended_, false)) return;
  continue_descendants();
  for (const auto& worker : workers_) worker->pulse().forgive(now() - last_look_);
  last_look_ = now();
  next_look_ = last_look_ + look_period_;
}

void Attempt::output_ready(uint64_t index, Stream which) {
  if (Worker* worker = at(index)) worker->stream(which).pump(link_);
}

void Attempt::input_ready(uint64_t index) {
  if (Worker* worker = at(index)) pump_input(*worker);
}

void Attempt::input(const Input& input) {
  Worker* worker = input.attempt == number() ? find(input.rank) : nullptr;
  if (worker == nullptr || !worker->input()) return;
  worker->input()->feed(input.bytes, input.last);
  pump_input(*worker);
}

void Attempt::pump_input(Worker& worker) {
  if (!worker.input()) return;
  const uint64_t taken = worker.input()->pump();
  if (taken > 0) link_.send(InputCredit{number(), worker.rank(), taken});
}

void Attempt::notified(uint64_t index) {
  if (Worker* worker = at(index)) take_notifications(*worker);
}

void Attempt::take_notifications(Worker& worker) {
  for (const Notification& notification : worker.take_notifications()) {
    if (notification.step) worker.progress().told(*notification.step);
    if (notification.alive) worker.progress().told();
    if (notification.extend_us) worker.pulse().extend(now(), extension(*notification.extend_us));
    if (notification.checkpoint.empty()) continue;
    link_.send(ForeignCheckpoint{number(), worker.rank(), worker.progress().step(),
                                 notification.checkpoint});
  }
}

void Attempt::heard(WorkerNews news) {
  Worker* worker = find(news.rank);
  HVD_CHECK(worker != nullptr);
  std::visit(
      [&](auto& message) {
        using M = std::decay_t<decltype(message)>;
        if constexpr (std::is_same_v<M, Join>) {
          worker->joined = true;
          worker->progress().attach(std::move(news.memory));
          if (failure_) tell_failure(worker->rank());
        } else if constexpr (std::is_same_v<M, Finalized>) {
          worker->finalized = true;
        } else if constexpr (std::is_same_v<M, ShardKept>) {
          if (message.error.empty()) message.error = kept_.add(message, std::move(news.memory));
          link_.send(std::move(message));
        } else {
          link_.send(std::move(message));
        }
      },
      news.message);
}

bool Attempt::judges_progress() const {
  // Ranks wait for a launcher that is not there: they are not judged by that.
  return start_.stall_ns > 0 && phase_ == Phase::running && !suspended_ && !link_.ended();
}

void Attempt::look(Time now) {
  // Whoever did not look for long was stopped, or the whole machine was, and the ranks perhaps too.
  const Duration gap = now - std::exchange(last_look_, now);
  next_look_ = now + look_period_;
  for (const auto& worker : workers_) {
    if (!worker->running()) continue;
    if (gap > 2 * look_period_) worker->pulse().forgive(gap);
    switch (worker->look(now)) {
      case Pulse::Change::none:
        break;
      case Pulse::Change::stalled:
        link_.send(RankStalled{number(), worker->rank()});
        break;
      case Pulse::Change::moved:
        link_.send(RankMoved{number(), worker->rank()});
        break;
    }
  }
}

void Attempt::show(const LookAtRanks& look, Time now) {
  RanksSeen seen{look.attempt, look.look, {}};
  for (const auto& worker : workers_) {
    if (!worker->running()) continue;
    worker->progress().refresh();
    seen.ranks.push_back(worker->view(now));
  }
  link_.send(seen);
}

void Attempt::tell_failure(uint32_t rank) {
  socket_.send_to(rank, PeerFailed{number(), failure_->failed_rank, failure_->reason});
}

void Attempt::stop(const StopAttempt& stop, Time now) {
  if (stop.attempt != number() || phase_ == Phase::killing || phase_ == Phase::gone) return;
  resume();
  const Duration grace = bounded(stop.grace_ns);
  kill_at_ = phase_ == Phase::running ? now + grace : std::min(kill_at_, now + grace);
  if (stop.failed && !failure_) {
    failure_ = stop;
    for (const auto& worker : workers_) tell_failure(worker->rank());
    Worker* failed = stop.kill_failed ? find(stop.failed_rank) : nullptr;
    if (failed != nullptr) failed->kill();
  }
  if (phase_ == Phase::running && grace > 0ns) {
    for (const auto& worker : workers_) worker->terminate();
  }
  phase_ = Phase::stopping;
}

void Attempt::grant(const Credit& credit) {
  Worker* worker = credit.attempt == number() ? find(credit.rank) : nullptr;
  if (worker == nullptr) return;
  worker->stream(credit.stream).grant(credit.bytes);
  worker->stream(credit.stream).pump(link_);
}

void Attempt::tell_steps_again() {
  for (const auto& worker : workers_) worker->reported_step = 0;
}

std::vector<OutputStream*> Attempt::streams() {
  std::vector<OutputStream*> streams;
  for (const auto& worker : workers_) {
    for (const Stream which : {Stream::out, Stream::err}) streams.push_back(&worker->stream(which));
  }
  return streams;
}

void Attempt::act(Time now) {
  if (phase_ == Phase::stopping && (now >= kill_at_ || running_pids().empty())) {
    phase_ = Phase::killing;
    killing_since_ = now;
    round_pause_ = kFirstPause;
    next_round_ = now;
  }
  if (phase_ == Phase::killing && now >= next_round_) kill_round(now);
  if (judges_progress() && now >= next_look_) look(now);
}

void Attempt::kill_round(Time now) {
  const std::vector<pid_t> mains = running_pids();
  if (kill_descendants_once(mains) && mains.empty()) {
    phase_ = Phase::gone;
    return;
  }
  next_round_ = now + round_pause_;
  round_pause_ = std::min(kLongestPause, round_pause_ * 2);
  if (!told_slow_ && now - killing_since_ >= kSlowDeath) {
    told_slow_ = true;
    link_.send(AgentNotice{"processes of attempt " + std::to_string(number()) +
                           " do not die of KILL and are waited for" +
                           (mains.empty() ? "" : ", among them pid " + std::to_string(mains[0]))});
  }
}

std::optional<Time> Attempt::deadline() const {
  if (phase_ == Phase::stopping) return kill_at_;
  if (phase_ == Phase::killing) return next_round_;
  if (judges_progress()) return next_look_;
  return std::nullopt;
}

void Attempt::watch(bool output, bool messages) {
  for (const auto& worker : workers_) worker->watch(output, messages);
}

std::vector<OutputStream> Attempt::take_streams() {
  std::vector<OutputStream> left;
  for (const auto& worker : workers_) {
    for (const Stream which : {Stream::out, Stream::err}) {
      OutputStream& stream = worker->stream(which);
      stream.finish();
      stream.pump(link_);
      if (!stream.over()) left.push_back(std::move(stream));
    }
  }
  return left;
}

}  // namespace hvd
