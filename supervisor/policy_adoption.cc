// The policy's part about launchers that come and go: what the next one must know, and the takeover
// of a job whose agents went on without one.
//
// The takeover asks every host, and judges once all have answered or the start deadline is over.
// Agents tell the truth about attempts, since what was written down may be a moment old:
//
//   some of the newest attempt is alive      it goes on, with the news that its agents kept; where
//                                            a host of it is missing, or a part of it was stopped
//                                            already, it fails by that and is started again
//   nothing of it is alive, and why it       the next attempt is started
//   ended was judged before
//   nothing of it is alive                   its news say how it ended
//   no agent is there                        there is nothing to take over
//
// What an agent still has of an older attempt is ended there and then.
#include <algorithm>
#include <csignal>

#include "base/exit_codes.h"
#include "supervisor/policy.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
// Channels have the start deadline themselves and give the better reason: ours is behind it.
constexpr Duration kMargin = 2s;

std::vector<uint64_t> listed(const std::set<uint64_t>& steps) {
  return {steps.begin(), steps.end()};
}

std::set<uint64_t> as_set(const std::vector<uint64_t>& steps) {
  return {steps.begin(), steps.end()};
}
}  // namespace

JobMemory Policy::memory() const {
  JobMemory m;
  m.attempt = attempt_;
  m.attempts_started = attempts_started_;
  m.between = phase_ == Phase::gathering || phase_ == Phase::proving ||
              phase_ == Phase::preparing || phase_ == Phase::backing_off;
  if (phase_ == Phase::stopping && cause_.kind == Cause::Kind::user) m.stop_signal = cause_.signal;
  for (const HostPlaces& places : placement_) m.hosts.push_back(places.host);
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    m.ledger.push_back({ledger_.failures(host), ledger_.excluded(host)});
  }
  m.budget = budget_.used();
  m.same_endings = same_endings_;
  m.other_port_tried = other_port_tried_;
  m.folder = folder_;
  m.known = listed(known_);
  m.verified = listed(verified_);
  m.rejected = listed(rejected_);
  m.resumed_step = resumed_step_;
  m.resumed = resumed_;
  m.committed_ever = committed_ever_;
  m.had_checkpoint = had_checkpoint_;
  if (foreign_) m.foreign_path = foreign_->path;
  if (foreign_) m.foreign_step = foreign_->step;
  m.reached_step = reached_step_;
  return m;
}

void Policy::remember(const JobMemory& m, Time now) {
  attempt_ = m.attempt;
  attempts_started_ = m.attempts_started;
  if (attempts_started_ > 0) previous_size_ = job_.size;
  for (size_t i = 0; i < placement_.size() && i < m.hosts.size(); ++i) {
    if (m.hosts[i] >= hosts_.size() || m.hosts[i] == placement_[i].host) continue;
    hosts_[placement_[i].host].spare = true;
    placement_[i].host = m.hosts[i];
  }
  for (uint32_t host = 0; host < hosts_.size() && host < m.ledger.size(); ++host) {
    ledger_.restore(host, m.ledger[host].failures, m.ledger[host].excluded, now);
  }
  budget_.restore(m.budget);
  same_endings_ = m.same_endings;
  other_port_tried_ = m.other_port_tried;
  folder_ = m.folder;
  known_ = as_set(m.known);
  verified_ = as_set(m.verified);
  rejected_ = as_set(m.rejected);
  resumed_step_ = m.resumed_step;
  resumed_ = m.resumed;
  committed_ever_ = m.committed_ever;
  had_checkpoint_ = m.had_checkpoint;
  if (!m.foreign_path.empty()) foreign_ = ForeignCheckpoint{0, 0, m.foreign_step, m.foreign_path};
  reached_step_ = std::max(reached_step_, m.reached_step);
}

Actions Policy::take_over(const JobMemory& memory, Duration elapsed, Time now) {
  remember(memory, now);
  takeover_ = Takeover{};
  takeover_.was_between = memory.between;
  takeover_.stop_signal = memory.stop_signal;
  times_.start(reached_step_, now);
  if (job_.wall_time) {
    wall_stop_ = now + plan_wall_time(*job_.wall_time, job_.grace).stop_after - elapsed;
  }
  phase_ = Phase::taking_over;
  deadline_ = now + job_.start_timeout + kMargin;
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (!holds_ranks(host) && !hosts_[host].spare) continue;
    hosts_[host].link = Link::connecting;
    takeover_.waiting.insert(host);
    out_.push_back(Connect{host, holds_ranks(host), true});
  }
  return std::exchange(out_, {});
}

// The news that an agent kept come before its first beat.
void Policy::hear(const AgentSaid& said, Time now) {
  takeover_.said.push_back(said);
  if (std::holds_alternative<Beat>(said.message)) heard_of(said.host, now);
}

void Policy::heard_of(uint32_t host, Time now) {
  if (takeover_.waiting.erase(host) > 0 && takeover_.waiting.empty()) judge_takeover(now);
}

void Policy::not_taken(const HostDown& event, Time now) {
  takeover_.held.erase(event.host);
  if (event.end != HostEnd::ended) out_of_reach(event.host, now);
  heard_of(event.host, now);
}

// Its ranks may run for as long as they may without a launcher.
void Policy::out_of_reach(uint32_t host, Time now) {
  takeover_.out_of_reach += "\n" + hosts_[host].last_reason;
  hosts_[host].fenced = now + longest_alone(job_.survive, job_.failure_grace, job_.silence);
}

void Policy::judge_takeover(Time now) {
  deadline_.reset();
  for (const uint32_t host : takeover_.waiting) {
    takeover_.held.erase(host);
    hosts_[host].last_reason =
        job_.hosts[host].name + " did not answer within " + format_duration(job_.start_timeout);
    out_of_reach(host, now);
    hosts_[host].link = Link::none;
    out_.push_back(Drop{host});
  }
  if (takeover_.held.empty()) return nothing_to_take();
  uint32_t newest = attempt_;
  for (const auto& [host, held] : takeover_.held) {
    if (held.state != HeldState::none) newest = std::max(newest, held.start.attempt);
  }
  end_older_attempts(newest, now);
  bool alive = false, known = false;
  for (const auto& [host, held] : takeover_.held) {
    known = known || held.state != HeldState::none;
    alive = alive || held.state == HeldState::running || held.state == HeldState::stopping;
  }
  const bool judged = takeover_.was_between && newest == attempt_;
  attempts_started_ += newest - attempt_;
  attempt_ = newest;
  if (alive || (known && !judged)) return go_on_with_held(now);
  say(Say::Level::info, "no rank of job " + job_.id + " runs now");
  phase_ = Phase::gathering;
  if (!stop_as_asked(now)) gather(now);
}

// What was to end the job while it was being taken over does now.
bool Policy::stop_as_asked(Time now) {
  if (takeover_.stop_signal != 0) {
    on(StopRequested{takeover_.stop_signal}, now);
    return true;
  }
  if (!takeover_.stop) return false;
  const StopInOrder& stop = *takeover_.stop;
  end_in_order(stop.cause, stop.why, stop.grace, now);
  return true;
}

void Policy::nothing_to_take() {
  cause_ = Cause{};
  cause_.kind = Cause::Kind::setup;
  cause_.code = takeover_.out_of_reach.empty() ? kExitNothingToResume : kExitNoHosts;
  cause_.text = "nothing of job " + job_.id + " runs any more";
  if (!takeover_.out_of_reach.empty()) {
    cause_.text = "no host of job " + job_.id + " could be reached:" + takeover_.out_of_reach;
  }
  say(Say::Level::error, cause_.text);
  if (cause_.code == kExitNothingToResume && !job_.checkpoint_dir.empty()) {
    say(Say::Level::error,
        "to go on from its newest checkpoint: hvdlaunch resume " + job_.checkpoint_dir);
  }
  leave();
}

// Its agent is replaced by another before ranks run there again.
void Policy::end_older_attempts(uint32_t newest, Time now) {
  for (auto next = takeover_.held.begin(); next != takeover_.held.end();) {
    const auto one = next++;
    auto& [host, held] = *one;
    if (held.state == HeldState::none || held.start.attempt == newest) continue;
    if (held.state == HeldState::gone) {
      held.state = HeldState::none;
      continue;
    }
    send(host, Goodbye{0});
    out_.push_back(Drop{host});
    hosts_[host].link = Link::none;
    hosts_[host].last_reason = job_.hosts[host].name + " still ran an earlier attempt";
    if (!holds_ranks(host)) retry_later(host, now);
    takeover_.held.erase(one);
  }
}

// The attempt is this one's from here, and what its agents have to say is heard.
void Policy::go_on_with_held(Time now) {
  bool untouched = true;
  for (const auto& [host, held] : takeover_.held) {
    if (held.state == HeldState::none) continue;
    for (HostPlaces& places : placement_) {
      if (!held.start.places.empty() &&
          places.places.front().rank == held.start.places.front().rank) {
        places.host = host;
      }
    }
    untouched = untouched && held.state == HeldState::running;
  }
  begin_attempt();
  times_.attempt_begins(attempt_, resumed_step_);
  std::optional<uint32_t> missing;
  for (const HostPlaces& places : placement_) {
    const auto held = takeover_.held.find(places.host);
    const bool has_it = held != takeover_.held.end() && held->second.state != HeldState::none;
    hosts_[places.host].active = has_it && held->second.state != HeldState::gone;
    if (!has_it && !missing) missing = places.host;
  }
  for (const AgentSaid& said : std::exchange(takeover_.said, {})) {
    if (phase_ != Phase::done) on(said, now);
  }
  if (phase_ != Phase::running) return;
  if (missing) return fail_without(missing, now);
  if (stop_as_asked(now)) return;
  if (!untouched) return fail_without(std::nullopt, now);
  say(Say::Level::info, "attempt " + std::to_string(attempt_) + " of job " + job_.id +
                            " goes on, with all its ranks");
}

void Policy::fail_without(std::optional<uint32_t> host, Time now) {
  Cause cause;
  cause.kind = Cause::Kind::link_lost;
  cause.text = "attempt " + std::to_string(attempt_) +
               " was being started or stopped when its launcher ended";
  if (host) {
    cause.kind = hosts_[*host].fenced > now ? Cause::Kind::host_silent : Cause::Kind::agent_ended;
    cause.host = host;
    cause.text = hosts_[*host].last_reason.empty()
                     ? job_.hosts[*host].name + ": its agent ended while no launcher was there"
                     : hosts_[*host].last_reason;
  }
  if (takeover_.stop_signal != 0 && takeover_.stop_signal != SIGHUP) {
    cause = Cause{};
    cause.kind = Cause::Kind::user;
    cause.signal = takeover_.stop_signal;
    cause.text = "stopped by the user";
  }
  fail(cause, now);
}

// ---- the other side: this launcher goes, or another has come ----

void Policy::taken_over(const std::string& reason) {
  cause_ = Cause{};
  cause_.kind = Cause::Kind::setup;
  cause_.code = phase_ == Phase::taking_over ? kExitUsage : kExitOwnFailure;
  cause_.text = reason;
  say(Say::Level::error, reason);
  leave();
}

// The terminal is gone, and the job is not.
void Policy::hung_up(int signal) {
  cause_ = Cause{};
  cause_.kind = Cause::Kind::user;
  cause_.signal = signal;
  cause_.text = "the terminal is gone; job " + job_.id + " goes on for " +
                format_duration(job_.survive) + ", and `hvdlaunch attach " + job_.id +
                "` watches it again";
  say(Say::Level::warning, cause_.text);
  leave();
}

void Policy::leave() {
  finish_with_cause();
  std::get<Finish>(out_.back()).leaves = true;
}

}  // namespace hvd
