#include "supervisor/policy.h"

#include <algorithm>

#include "base/exit_codes.h"
#include "base/gpu_view.h"
#include "supervisor/machines.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

// Output that may be under way from one stream of a rank, and from all of them.
constexpr uint64_t kStreamCredit = 1 << 20;
constexpr uint64_t kAllCredit = 64 << 20;
constexpr uint64_t kLeastCredit = 4 << 10;

const char* reason_word(const Cause& cause) {
  switch (cause.kind) {
    case Cause::Kind::none:
      return "";
    case Cause::Kind::exited:
    case Cause::Kind::killed:
    case Cause::Kind::left_early:
    case Cause::Kind::aborted:
    case Cause::Kind::not_started:
      return "worker-failed";
    case Cause::Kind::agent_ended:
      return "agent-ended";
    case Cause::Kind::link_lost:
      return "link-lost";
    case Cause::Kind::host_silent:
      return "host-lost";
    case Cause::Kind::stalled:
      return "stalled";
    case Cause::Kind::bad_state:
      return "bad-state";
    case Cause::Kind::storage:
      return "storage";
    case Cause::Kind::preempted:
      return "preempted";
    case Cause::Kind::user:
    case Cause::Kind::wall_time:
    case Cause::Kind::output:
    case Cause::Kind::setup:
      break;
  }
  return "other";
}

}  // namespace

const char* cause_word(Cause::Kind kind) {
  switch (kind) {
    case Cause::Kind::none:
      return "none";
    case Cause::Kind::exited:
      return "exited";
    case Cause::Kind::killed:
      return "killed";
    case Cause::Kind::not_started:
      return "not-started";
    case Cause::Kind::left_early:
      return "left-early";
    case Cause::Kind::aborted:
      return "aborted";
    case Cause::Kind::agent_ended:
      return "agent-ended";
    case Cause::Kind::link_lost:
      return "link-lost";
    case Cause::Kind::host_silent:
      return "host-silent";
    case Cause::Kind::stalled:
      return "stalled";
    case Cause::Kind::bad_state:
      return "bad-state";
    case Cause::Kind::storage:
      return "storage";
    case Cause::Kind::user:
      return "user";
    case Cause::Kind::wall_time:
      return "wall-time";
    case Cause::Kind::preempted:
      return "preempted";
    case Cause::Kind::output:
      return "output";
    case Cause::Kind::setup:
      break;
  }
  return "setup";
}

Policy::Policy(const Job& job, Placement placement, uint64_t seed)
    : job_(job),
      placement_(std::move(placement)),
      hosts_(job.hosts.size()),
      ledger_(job.hosts.size(), job.max_host_failures),
      random_(static_cast<uint32_t>(seed)),
      reached_step_(job.reached_step) {
  for (size_t host = 0; host < hosts_.size(); ++host) hosts_[host].spare = job.hosts[host].spare;
  if (!job.resume_foreign.empty()) {
    foreign_ = ForeignCheckpoint{0, 0, job.resume_foreign_step, job.resume_foreign};
  }
}

Actions Policy::start(Time now) {
  times_.start(reached_step_, now);
  if (job_.wall_time) wall_stop_ = now + plan_wall_time(*job_.wall_time, job_.grace).stop_after;
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (!holds_ranks(host) && !hosts_[host].spare) continue;
    hosts_[host].link = Link::connecting;
    out_.push_back(Connect{host});
  }
  gather(now);
  return std::exchange(out_, {});
}

Actions Policy::step(const Event& event, Time now) {
  if (phase_ == Phase::done) return {};
  times_.advance(now);
  std::visit([&](const auto& e) { on(e, now); }, event);
  account_phase();
  return std::exchange(out_, {});
}

void Policy::account_phase() {
  switch (phase_) {
    case Phase::taking_over:
    case Phase::gathering:
      return times_.enter(Spent::connecting);
    case Phase::proving:
      return times_.enter(Spent::proving);
    case Phase::preparing:
      return times_.enter(Spent::preparing);
    case Phase::stopping:
      return times_.enter(Spent::stopping);
    case Phase::backing_off:
      return times_.enter(Spent::backing_off);
    case Phase::running:
    case Phase::done:
      return;
  }
}

std::optional<Time> Policy::next_deadline() const {
  if (phase_ == Phase::done) return std::nullopt;
  std::optional<Time> next = earlier(earlier(deadline_, wall_stop_), count_down_);
  next = earlier(earlier(next, look_until_), earlier(warn_again_, look_at_locks_));
  if (phase_ == Phase::gathering) next = earlier(next, spare_after_);
  next = earlier(next, stacks_until_);
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (may_retry(host)) next = earlier(next, hosts_[host].retry);
  }
  return next;
}

// What the hosts turned out to be is held against the plan before anything starts there.
bool Policy::check_machines(Time now) {
  std::vector<KnownMachine> machines;
  for (const HostPlaces& places : placement_) {
    machines.push_back({places.host, hosts_[places.host].hello});
  }
  const std::string shortages = gpu_shortages(job_, machines, placement_);
  if (!shortages.empty()) {
    setup_failed(shortages, now);
    return false;
  }
  if (attempts_started_ > 0) return true;
  for (const std::string& text : shared_machines(job_, machines)) say(Say::Level::warning, text);
  const std::string threads = thread_shares(job_, machines, placement_);
  if (!threads.empty()) say(Say::Level::detail, "OMP_NUM_THREADS is set to " + threads);
  return true;
}

// ---- the life of an attempt ----

Policy::Origin Policy::origin_of(const Candidate* from) {
  if (from == nullptr) return foreign_ ? Origin{foreign_->path, foreign_->step, nullptr} : Origin{};
  verified_.insert(from->step);
  had_checkpoint_ = true;
  return {job_.checkpoint_dir + "/" + step_folder(from->step), from->step, nullptr};
}

void Policy::start_attempt(const Origin& origin) {
  resumed_ = !origin.path.empty();
  from_memory_ = origin.kept != nullptr;
  if (resumed_step_ != origin.step) failures_from_checkpoint_ = 0;
  resumed_step_ = origin.step;
  ++attempt_;
  ++attempts_started_;
  begin_attempt();
  times_.attempt_begins(attempt_, origin.step, from_memory_);
  for (const HostPlaces& places : placement_) {
    hosts_[places.host].active = true;
    send(places.host, make_start(places, origin));
  }
  if (attempts_started_ > 1 || resumed_) {
    say(Say::Level::info, "attempt " + std::to_string(attempt_) + " goes on from " +
                              (resumed_ ? "step " + std::to_string(origin.step) : "the beginning") +
                              (from_memory_ ? ", which the agents have in memory" : ""));
  }
  std::erase_if(kept_, [&](const auto& one) { return &one != origin.kept; });
  previous_size_ = job_.size;
}

void Policy::begin_attempt() {
  ended_ok_ = 0;
  exchange_.clear();
  exchanged_.clear();
  loaded_.clear();
  saves_.clear();
  handed_in_.clear();
  forget_stalls();
  consequences_.clear();
  working_.clear();
  for (uint32_t rank = 0; rank < job_.size; ++rank) working_.insert(working_.end(), rank);
  progressed_ = false;
  address_in_use_ = false;
  reached_at_start_ = reached_step_;
  cause_ = Cause{};
  phase_ = Phase::running;
  stragglers_.begin(job_.size);
  slow_.reset();
  deadline_.reset();
}

StartAttempt Policy::make_start(const HostPlaces& places, const Origin& origin) const {
  const HostState& first = hosts_[placement_.front().host];
  const Host& host = job_.hosts[places.host];
  StartAttempt m;
  m.attempt = attempt_;
  m.size = job_.size;
  m.host_rank = places.host_rank;
  m.host_count = static_cast<uint32_t>(placement_.size());
  for (const HostPlaces& other : placement_) {
    const auto ranks = static_cast<uint32_t>(other.places.size());
    const bool same = same_machine(hosts_[other.host].hello, hosts_[places.host].hello);
    if (other.host != places.host && !same) continue;
    m.machine_size += ranks;
    if (other.host_rank < places.host_rank) m.machine_first += ranks;
  }
  m.previous_size = previous_size_;
  m.max_restarts = restart_limit();
  m.places = places.places;
  m.argv = job_.argv;
  m.substitute = job_.substitute;
  m.binding = job_.binding;
  m.split_gpus = job_.gpus_per_rank.has_value();
  m.gpus_per_rank = job_.gpus_per_rank.value_or(0);
  m.workdir = host.workdir.empty() ? job_.workdir : host.workdir;
  m.forwarded = job_.forwarded;
  if (!host.gpus.empty()) m.set.emplace_back("CUDA_VISIBLE_DEVICES", joined_gpus(host.gpus));
  m.set.insert(m.set.end(), host.env.begin(), host.env.end());
  m.set.insert(m.set.end(), job_.set.begin(), job_.set.end());
  m.data_address = data_address(places.host);
  if (const auto& data = hosts_[places.host].data) m.data_card = data->card;
  m.master_address = data_address(placement_.front().host);
  m.master_port = first.hello.reserved_port;
  m.free_port = other_port_tried_;
  m.secret = job_.secret;
  m.checkpoint_dir = job_.checkpoint_dir;
  m.checkpoint_every = job_.checkpoint_every;
  m.resume_from = origin.path;
  m.resume_step = origin.step;
  if (origin.kept != nullptr) m.kept = held_by(*origin.kept, places.host);
  m.reached_step = reached_step_;
  m.restart_reason = reason_word(last_failure_);
  // What an earlier attempt read is gone.
  m.input = job_.input_rank && previous_size_ == 0;
  m.input_rank = job_.input_rank.value_or(0);
  m.stall_ns = static_cast<uint64_t>(job_.stall_timeout.count());
  m.stall_asked = job_.stall_asked;
  m.credit = std::clamp<uint64_t>(kAllCredit / (2 * job_.size), kLeastCredit, kStreamCredit);
  return m;
}

void Policy::on(const AgentSaid& event, Time now) {
  if (phase_ == Phase::taking_over) return hear(event, now);
  std::visit([&](const auto& m) { said(event.host, m, now); }, event.message);
}

void Policy::said(uint32_t host, const AttemptStopped& m, Time now) {
  if (!current(m.attempt) || !hosts_[host].active) return;
  hosts_[host].active = false;
  hosts_[host].hello.reserved_port = m.reserved_port;
  if (phase_ == Phase::stopping) stopped_all(now);
}

void Policy::said(uint32_t host, const Beat& m, Time) {
  if (!current(m.attempt)) return;
  note_steps(m.steps);
  watch_pace(host, m);
}

void Policy::said(uint32_t host, const ExchangeBlob& m, Time) {
  if (!current(m.attempt) || !ranks_work() || !is_rank_of(host, m.rank)) return;
  auto& blobs = exchange_[m.round];
  blobs.resize(job_.size);
  blobs[m.rank] = m.blob;
  auto& given = exchanged_[m.round];
  given.insert(m.rank);
  if (given.size() < job_.size) return;
  send_to_active(ExchangeResult{attempt_, m.round, std::move(blobs)});
  exchange_.erase(m.round);
  exchanged_.erase(m.round);
}

void Policy::said(uint32_t host, const ForeignCheckpoint& m, Time) {
  if (!current(m.attempt) || !is_rank_of(host, m.rank)) return;
  foreign_ = m;
  committed_ever_ = true;
  times_.saved(m.step);
  note_saved();
  say(Say::Level::detail,
      "the program's checkpoint at step " + std::to_string(m.step) + " is " + m.path);
}

void Policy::said(uint32_t host, const AgentNotice& m, Time) {
  say(Say::Level::warning, job_.hosts[host].name + ": " + m.text);
}

void Policy::note_steps(const std::vector<RankStep>& steps) {
  for (const RankStep& one : steps) {
    times_.reached(one.step);
    reached_step_ = std::max(reached_step_, one.step);
  }
  if (reached_step_ <= reached_at_start_ || progressed_) return;
  progressed_ = true;
  budget_.refill();
}

void Policy::on(const Tick&, Time now) {
  if (wall_stop_ && *wall_stop_ <= now) wall_time_over(now);
  if (phase_ == Phase::done) return;
  if (count_down_ && *count_down_ <= now) count_down(now);
  stall_tick(now);
  retry_hosts(now);
  if (look_at_locks_ && *look_at_locks_ <= now) watch_locks_again(now);
  if (phase_ == Phase::gathering && spare_after_ && *spare_after_ <= now) replace_late_hosts(now);
  if (!deadline_ || *deadline_ > now) return;
  deadline_.reset();
  switch (phase_) {
    case Phase::taking_over:
      return judge_takeover(now);
    case Phase::gathering:
      return gather_failed();
    case Phase::proving:
      return proof_late(now);
    case Phase::preparing:
      return prepare_late(now);
    case Phase::backing_off:
      return wait_for_hosts(now);
    case Phase::stopping:
      return drop_unstopped(now);
    case Phase::running:
    case Phase::done:
      HVD_CHECK(false);
  }
}

// ---- small helpers ----

bool Policy::holds_ranks(uint32_t host) const {
  return std::any_of(placement_.begin(), placement_.end(),
                     [&](const HostPlaces& p) { return p.host == host; });
}

uint32_t Policy::host_of(uint32_t rank) const {
  for (const HostPlaces& places : placement_) {
    for (const Place& place : places.places) {
      if (place.rank == rank) return places.host;
    }
  }
  HVD_CHECK(false);
}

bool Policy::is_rank_of(uint32_t host, uint32_t rank) const {
  return rank < job_.size && host_of(rank) == host;
}

std::string Policy::rank_name(uint32_t rank) const {
  return "rank " + std::to_string(rank) + " on " + job_.hosts[host_of(rank)].name;
}

void Policy::send(uint32_t host, ToAgent message) {
  out_.push_back(Send{host, std::move(message)});
}

void Policy::send_to_active(const ToAgent& message) {
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].active && hosts_[host].link == Link::up) send(host, message);
  }
}

void Policy::say(Say::Level level, std::string text) {
  out_.push_back(Say{level, std::move(text)});
}

}  // namespace hvd
