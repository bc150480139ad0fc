// The policy's part about endings: what a rank's end means, stops that were asked for by the user
// or the wall time, what may be tried again, and the job's end.
//
// A stop in order is one that was asked for, or that nobody could read the output of. Its ranks get
// TERM and the grace and may save; a checkpoint that is committed meanwhile makes it end with 75. A
// failure's stop has the shorter failure grace, and can no longer lead to a checkpoint. What ends
// the job is fixed by what came first: a failure stays the cause when a stop is asked for behind
// it, unless the job would have gone on.
#include <algorithm>
#include <cctype>
#include <csignal>

#include "base/exit_codes.h"
#include "base/process.h"
#include "supervisor/policy.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

constexpr uint32_t kDefaultRestarts = 10;
constexpr uint32_t kCrashLoop = 3;
constexpr uint32_t kPoisoned = 2;
// Beyond the grace, for the KILL and for the answer to travel.
constexpr Duration kStopMargin = 10s;
// How often a stop in order says what it waits for.
constexpr Duration kCountDown = 10s;
// One key press can arrive twice, from the terminal and from a wrapper that passes it on.
constexpr Duration kOneKeyPress = 250ms;
// Before the end of the wall time, for KILL and for taking leave.
constexpr Duration kWallMargin = 2s;
// How many ranks or ends one line names.
constexpr size_t kNamed = 6;

bool program_fault(int signal) {
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGFPE ||
         signal == SIGILL;
}

// The program itself ended the attempt: not a person, the kernel's memory killer or a host.
bool own_doing(const Cause& cause) {
  switch (cause.kind) {
    case Cause::Kind::exited:
    case Cause::Kind::left_early:
    case Cause::Kind::aborted:
      return true;
    case Cause::Kind::killed:
      return program_fault(cause.signal);
    default:
      return false;
  }
}

bool is_of_a_host(const Cause& cause) {
  return cause.kind == Cause::Kind::agent_ended || cause.kind == Cause::Kind::link_lost ||
         cause.kind == Cause::Kind::host_silent;
}

RestartBudget::Kind budget_kind(const Cause& cause) {
  switch (cause.kind) {
    case Cause::Kind::agent_ended:
    case Cause::Kind::host_silent:
      return RestartBudget::Kind::host;
    case Cause::Kind::link_lost:
      return RestartBudget::Kind::link;
    case Cause::Kind::stalled:
      return RestartBudget::Kind::stall;
    case Cause::Kind::bad_state:
    case Cause::Kind::storage:
      return RestartBudget::Kind::state;
    default:
      return RestartBudget::Kind::program;
  }
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t start = text.rfind('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1, end + 1);
}

// Without its numbers: the rank, the process or the time of day are not what failed.
std::string last_words(const Cause& cause) {
  std::string words = last_line(cause.last_lines);
  std::erase_if(words, [](unsigned char c) { return std::isdigit(c) != 0; });
  return words;
}

bool same_ending(const Cause& a, const Cause& b) {
  return a.kind == b.kind && a.code == b.code && a.signal == b.signal &&
         last_words(a) == last_words(b);
}

// The program itself cannot be run, rather than its host having no room for it now.
bool cannot_run(const Cause& cause) {
  return cause.kind == Cause::Kind::not_started &&
         (cause.code == kExitCannotRun || cause.code == kExitNotFound);
}

// As the C library, Python, Go, Java and torch put it.
bool says_address_in_use(std::string lines) {
  std::transform(lines.begin(), lines.end(), lines.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lines.find("address already in use") != std::string::npos ||
         lines.find("eaddrinuse") != std::string::npos;
}

bool asked_for(const Cause& cause) {
  return cause.kind == Cause::Kind::user || cause.kind == Cause::Kind::wall_time ||
         cause.kind == Cause::Kind::output || cause.kind == Cause::Kind::preempted;
}

}  // namespace

WallPlan plan_wall_time(Duration wall, Duration grace) {
  const Duration margin = std::min<Duration>(kWallMargin, wall / 10);
  const Duration stop = std::max<Duration>(wall / 2, wall - grace - margin);
  return {stop, std::min<Duration>(grace, wall - stop - margin)};
}

namespace {

// As the cause has it; codes and signals come from agents, and any number can be in them.
int told_code(const Cause& cause) {
  switch (cause.kind) {
    case Cause::Kind::none:
      return 0;
    case Cause::Kind::exited:
    case Cause::Kind::not_started:
    case Cause::Kind::setup:
      return cause.code;
    case Cause::Kind::aborted:
      return cause.code != 0 ? cause.code & 255 : 1;
    case Cause::Kind::killed:
      return kExitSignalBase + cause.signal;
    case Cause::Kind::user:
    case Cause::Kind::preempted:
      return cause.saved ? kExitStoppedSaved : kExitSignalBase + cause.signal;
    case Cause::Kind::wall_time:
      return cause.saved ? kExitStoppedSaved : kExitWallTime;
    case Cause::Kind::output:
      return cause.saved ? kExitStoppedSaved : kExitOwnFailure;
    case Cause::Kind::left_early:
      return 1;
    default:
      return kExitGaveUp;
  }
}

}  // namespace

int exit_code_of(const Cause& cause) {
  const int code = told_code(cause) & 255;
  return code == 0 && cause.kind != Cause::Kind::none ? kExitGaveUp : code;
}

namespace {

std::string killer_text(Killer killer) {
  switch (killer) {
    case Killer::agent:
      return "hvdlaunch (SIGKILL)";
    case Killer::memory:
      return "the kernel (SIGKILL): it ran out of memory";
    case Killer::other:
      return "SIGKILL, not for memory";
    case Killer::unknown:
      break;
  }
  return "SIGKILL, whether for memory is unknown";
}

}  // namespace

std::string describe_ending(const WorkerEnded& ended, const std::string& rank_name) {
  if (!ended.not_started.empty()) return rank_name + " could not start: " + ended.not_started;
  if (ended.signal == SIGKILL) return rank_name + " was killed by " + killer_text(ended.killer);
  if (ended.signal != 0) return rank_name + " was killed by " + signal_name(ended.signal);
  if (ended.left_early) {
    return rank_name + " ended with exit code 0 without hvd_finalize while other ranks ran";
  }
  return rank_name + " ended with exit code " + std::to_string(ended.exit_code);
}

// ---- a rank's end ----

void Policy::said(uint32_t host, const WorkerEnded& m, Time now) {
  if (!current(m.attempt) || !is_rank_of(host, m.rank)) return;
  note_steps(m.steps);
  working_.erase(m.rank);
  stalled_.erase(m.rank);
  const bool last = ended_ok_ + 1 == job_.size;
  const bool good =
      m.signal == 0 && m.exit_code == 0 && m.not_started.empty() && (!m.left_early || last);
  if (!good && m.rank == 0 && says_address_in_use(m.last_lines)) address_in_use_ = true;
  const std::string text = describe_ending(m, rank_name(m.rank));
  if (phase_ != Phase::running) {
    if (!good) note_consequence(m);
    return rescue_when_all_told();
  }
  if (good) {
    if (++ended_ok_ == job_.size) stop_attempt(Duration::zero(), now);
    return;
  }
  Cause cause;
  cause.kind = !m.not_started.empty() ? Cause::Kind::not_started
               : m.signal != 0        ? Cause::Kind::killed
               : m.left_early         ? Cause::Kind::left_early
                                      : Cause::Kind::exited;
  cause.rank = m.rank;
  cause.host = host;
  cause.code = m.exit_code;
  cause.signal = m.signal;
  cause.killer = m.killer;
  cause.text = text;
  cause.last_lines = m.last_lines;
  fail(cause, now);
}

void Policy::note_consequence(const WorkerEnded& m) {
  const std::string text = describe_ending(m, rank_name(m.rank));
  say(Say::Level::detail, text + " (a consequence)");
  const std::string how = describe_ending(m, "");
  for (Consequence& known : consequences_) {
    if (known.how != how) continue;
    ++known.others;
    return;
  }
  consequences_.push_back({how, text, 0});
}

std::vector<std::string> Policy::told_consequences() const {
  std::vector<std::string> told;
  for (const Consequence& one : consequences_) {
    if (told.size() == kNamed) {
      told.back() =
          "others ended in " + std::to_string(consequences_.size() - kNamed + 1) + " other ways";
      break;
    }
    std::string others;
    if (one.others > 0) others = ", and " + std::to_string(one.others) + " more";
    told.push_back(one.first + others);
  }
  return told;
}

void Policy::said(uint32_t host, const WorkerAborted& m, Time now) {
  if (!current(m.attempt) || !is_rank_of(host, m.rank) || phase_ != Phase::running) return;
  Cause cause;
  cause.kind = Cause::Kind::aborted;
  cause.rank = m.rank;
  cause.host = host;
  cause.code = m.code;
  cause.text = rank_name(m.rank) + " called hvd_abort: " + m.reason;
  fail(cause, now);
}

// ---- stops in order ----

void Policy::on(const StopRequested& event, Time now) {
  if (phase_ == Phase::taking_over) {
    takeover_.stop_signal = event.signal;
    return;
  }
  // Who gave notice will send another signal, and that means a stop.
  if (event.signal == SIGUSR1) return preempt_all(signal_name(event.signal), event.signal, now);
  if (stop_asked_) return asked_again(event.signal, now);
  const bool survives = job_.survive > Duration::zero() && attempts_started_ > 0;
  if (event.signal == SIGHUP && survives && phase_ != Phase::stopping) return hung_up(SIGHUP);
  stop_asked_ = now;
  Cause cause;
  cause.kind = Cause::Kind::user;
  cause.signal = event.signal;
  cause.text = "stopped by " + signal_name(event.signal);
  end_in_order(cause, signal_name(event.signal), job_.grace, now);
}

// A terminal that closes sends more than one HUP, and takes the reader of the output along: only
// what a person repeats means now.
void Policy::asked_again(int signal, Time now) {
  if (signal != SIGINT && signal != SIGTERM) return;
  if (phase_ != Phase::stopping || now - *stop_asked_ < kOneKeyPress) return;
  say(Say::Level::warning, "killing what still runs");
  stop_attempt(Duration::zero(), now);
}

void Policy::on(const OutputFailed& event, Time now) {
  Cause cause;
  cause.kind = Cause::Kind::output;
  cause.text = event.reason;
  end_in_order(cause, "the output is lost", job_.grace, now);
}

void Policy::wall_time_over(Time now) {
  wall_stop_.reset();
  if (stop_asked_) return;
  Cause cause;
  cause.kind = Cause::Kind::wall_time;
  cause.text = "stopped for the wall time of " + format_duration(*job_.wall_time);
  const WallPlan plan = plan_wall_time(*job_.wall_time, job_.grace);
  end_in_order(cause,
               "the wall time of " + format_duration(*job_.wall_time) + " ends in " +
                   format_duration(*job_.wall_time - plan.stop_after),
               plan.grace, now);
}

void Policy::end_in_order(const Cause& cause, const std::string& why, Duration grace, Time now) {
  if (phase_ == Phase::taking_over) {
    takeover_.stop = StopInOrder{cause, why, grace};
    return;
  }
  if (phase_ == Phase::stopping) {
    if (cause_.kind == Cause::Kind::none) return;  // all ranks ended well
    // Of a stop in order, the reason stays. Behind a failure, there is no other attempt.
    if (!asked_for(cause_) || cause_.kind == Cause::Kind::preempted) last_word_ = cause;
    return say(Say::Level::warning,
               why + ": stopping already, INT or TERM once more kills what still runs");
  }
  cause_ = cause;
  if (phase_ != Phase::running) return finish_with_cause();
  say(Say::Level::warning, why + ": stopping all ranks within " + format_duration(grace) +
                               ", INT or TERM once more kills them now");
  stop_attempt(grace, now);
}

bool Policy::ranks_work() const {
  return phase_ == Phase::running || (phase_ == Phase::stopping && asked_for(cause_));
}

void Policy::note_saved() {
  if (phase_ == Phase::stopping && asked_for(cause_)) cause_.saved = true;
}

void Policy::count_down(Time now) {
  count_down_.reset();
  if (now >= kill_at_) return;
  std::string names;
  size_t named = 0;
  for (const uint32_t rank : working_) {
    if (named == kNamed) break;
    names += (named++ == 0 ? "" : ", ") + rank_name(rank);
  }
  if (working_.size() > named) names += " and " + std::to_string(working_.size() - named) + " more";
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(kill_at_ - now + 500ms);
  say(Say::Level::warning, "still stopping " + (names.empty() ? "what they started" : names) +
                               ": KILL in " + format_duration(left));
  count_down_ = now + kCountDown;
}

// ---- stopping ----

void Policy::fail(Cause cause, Time now) {
  say(Say::Level::error, cause.text);
  cause_ = std::move(cause);
  cause_.gone = cause_.rank;
  for (const HostPlaces& places : placement_) {
    if (!cause_.gone && places.host == cause_.host) cause_.gone = places.places.front().rank;
  }
  if (cause_.rank && cause_.host) rank_failed(*cause_.host);
  if (is_of_a_host(cause_) && cause_.host) {
    host_failed(*cause_.host, now);
    if (gives_up_ranks(cause_)) take_spare(*cause_.host, now);
  }
  stop_attempt(job_.failure_grace, now);
}

void Policy::stop_attempt(Duration grace, Time now) {
  phase_ = Phase::stopping;
  const bool well = cause_.kind == Cause::Kind::none;
  times_.attempt_ends(well ? "" : cause_word(cause_.kind), cause_.text, cause_.unnoticed);
  forget_stalls();
  deadline_ = now + grace + kStopMargin;
  kill_at_ = now + grace;
  if (asked_for(cause_)) count_down_ = now + kCountDown;
  StopAttempt stop;
  stop.attempt = attempt_;
  stop.grace_ns = static_cast<uint64_t>(grace.count());
  stop.failed = cause_.gone.has_value();
  stop.failed_rank = cause_.gone.value_or(0);
  stop.kill_failed = cause_.kind == Cause::Kind::stalled && cause_.rank.has_value();
  stop.reason = cause_.text;
  send_to_active(stop);
  stopped_all(now);
}

void Policy::stopped_all(Time now) {
  for (const HostState& host : hosts_) {
    if (host.active) return;
  }
  if (rescues() && !handed_in_.empty()) rescue();
  // A commit under way may be the last ranks' work; half of a removal would be left for ever.
  const bool in_order = cause_.kind == Cause::Kind::none || asked_for(cause_);
  if ((in_order || rescues()) && open_requests(Request::commit) > 0) {
    if (!deadline_) deadline_ = now + kStopMargin;
    return;
  }
  if (in_order && open_requests(Request::prune) > 0) return;
  deadline_.reset();
  count_down_.reset();
  if (cause_.kind == Cause::Kind::preempted) return preempted(now);
  if (cause_.kind == Cause::Kind::none || asked_for(cause_)) return finish_with_cause();
  std::string why_not;
  const bool go_on = may_go_on(why_not, now);
  last_failure_ = cause_;
  if (go_on && last_word_) cause_ = *last_word_;
  if (go_on && !last_word_) return relaunch(now);
  if (!why_not.empty()) say(Say::Level::error, why_not);
  finish_with_cause();
}

bool Policy::can_go_on() const {
  return !job_.checkpoint_dir.empty() || job_.resume || committed_ever_;
}

uint32_t Policy::restart_limit() const {
  return job_.max_restarts.value_or(can_go_on() ? kDefaultRestarts : 0);
}

// The port that rank 0 was told is a stranger's, or the program does not share it with the agent,
// which holds it: neither is the program's failure.
bool Policy::tries_another_port() {
  if (!address_in_use_ || progressed_ || other_port_tried_) return false;
  other_port_tried_ = true;
  say(Say::Level::warning, "rank 0 found its address in use: one more try, at another port");
  return true;
}

const Rule* Policy::rule_for(const Cause& cause) const {
  FailureTraits traits;
  const bool by_code = cause.kind == Cause::Kind::exited ||
                       cause.kind == Cause::Kind::not_started || cause.kind == Cause::Kind::aborted;
  if (by_code) traits.exit_code = told_code(cause);
  traits.signal = cause.kind == Cause::Kind::killed ? cause.signal : 0;
  traits.memory = cause.kind == Cause::Kind::killed && cause.killer == Killer::memory;
  traits.stall = cause.kind == Cause::Kind::stalled;
  traits.host_lost = is_of_a_host(cause);
  if (cause.host) traits.host = job_.hosts[*cause.host].name;
  traits.last_lines = cause.last_lines;
  return find_rule(job_.rules, traits);
}

// A crash loop, a program that cannot run, and a job that has nothing to go on from end the job,
// unless a rule says otherwise; a rule may end it, too.
bool Policy::is_the_end(const Rule* rule, std::string& why_not) {
  if (rule != nullptr) {
    if (rule->action == Rule::Action::stop) why_not = "by the rule '" + rule->text + "'";
    return rule->action == Rule::Action::stop;
  }
  if (cannot_run(cause_) || restart_limit() == 0) return true;
  if (same_endings_ < kCrashLoop || job_.max_restarts) return false;
  why_not = "the same failure " + std::to_string(kCrashLoop) +
            " times in a row without progress: another try would end the same way";
  return true;
}

bool Policy::may_go_on(std::string& why_not, Time now) {
  if (cause_.kind == Cause::Kind::setup) return false;
  const Rule* rule = rule_for(cause_);
  if (rule == nullptr && tries_another_port()) return true;
  same_endings_ = !progressed_ && own_doing(cause_) && same_ending(cause_, last_failure_)
                      ? same_endings_ + 1
                      : 1;
  if (is_the_end(rule, why_not)) return false;
  if (resumed_ && !progressed_ && own_doing(cause_) && ++failures_from_checkpoint_ >= kPoisoned) {
    if (from_memory_) {
      kept_.clear();
    } else {
      rejected_.insert(resumed_step_);
    }
    say(Say::Level::warning,
        (from_memory_ ? "the state of step " + std::to_string(resumed_step_) + " in memory"
                      : "checkpoint " + step_folder(resumed_step_)) +
            " is set aside: the program failed " + std::to_string(kPoisoned) +
            " times right after reading it");
  }
  if (rule != nullptr) say(Say::Level::info, "by the rule '" + rule->text + "' the job goes on");
  if (rule != nullptr && rule->action == Rule::Action::ignore_budget) {
    budget_.take_free();
    return true;
  }
  if (rule != nullptr && rule->action == Rule::Action::exclude_host) exclude_host(now);
  const uint32_t limit =
      rule != nullptr && restart_limit() == 0 ? kDefaultRestarts : restart_limit();
  if (budget_.take(budget_kind(cause_), limit, job_.max_restarts.has_value())) return true;
  why_not = "the restart budget of " + std::to_string(limit) + " is used up without progress";
  cause_.kind = Cause::Kind::agent_ended;  // ends with 70, whatever the last code was
  return false;
}

void Policy::exclude_host(Time now) {
  if (!cause_.host || ledger_.excluded(*cause_.host)) return;
  ledger_.exclude(*cause_.host, now);
  hosts_[*cause_.host].set_aside = true;
  say(Say::Level::warning, job_.hosts[*cause_.host].name + " is excluded from this run");
}

void Policy::relaunch(Time now) {
  // Ranks that stall, or come to nothing, may not reach each other any more.
  const bool in_doubt =
      last_failure_.kind == Cause::Kind::stalled || (own_doing(last_failure_) && !progressed_);
  if (in_doubt) dials_.clear();
  Duration pause = Duration::zero();
  // Another checkpoint is another try.
  const uint32_t tries = budget_.tries();
  if (tries > 1 && last_failure_.kind != Cause::Kind::bad_state) {
    const double longest = std::min(60.0, static_cast<double>(1u << std::min(tries - 2, 6u)));
    const double share = 0.5 + 0.5 * std::uniform_real_distribution<>(0, 1)(random_);
    pause = Duration(static_cast<int64_t>(longest * share * 1e9));
    say(Say::Level::info, "restart " + std::to_string(tries) + " in " + format_duration(pause));
  }
  pause_until_ = now + pause;
  wait_for_hosts(now);
}

// Agents that did not stop their ranks in time are cut off: their lease ends what runs there.
void Policy::drop_unstopped(Time now) {
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (!hosts_[host].active) continue;
    hosts_[host].last_reason = job_.hosts[host].name + " did not stop its ranks in time";
    say(Say::Level::error, hosts_[host].last_reason + ": cut off");
    hosts_[host].active = false;
    hosts_[host].link = Link::none;
    // Its lease is longer where the job survives its launcher.
    if (job_.survive > Duration::zero()) {
      hosts_[host].fenced = now + longest_alone(job_.survive, job_.failure_grace, job_.silence);
    }
    out_.push_back(Drop{host});
    host_failed(host, now);
    // What does not die there keeps its next agent waiting, too.
    if (holds_ranks(host)) take_spare(host, now);
  }
  if (open_requests(Request::commit) > 0) {
    say(Say::Level::error, "a checkpoint was not committed in time");
  }
  std::erase_if(requests_, [](const auto& r) {
    return r.second.kind == Request::commit || r.second.kind == Request::prune;
  });
  stopped_all(now);
}

void Policy::finish_with_cause() {
  phase_ = Phase::done;
  deadline_.reset();
  count_down_.reset();
  wall_stop_.reset();
  Finish finish;
  finish.code = exit_code_of(cause_);
  finish.from_worker = cause_.kind == Cause::Kind::exited || cause_.kind == Cause::Kind::killed ||
                       cause_.kind == Cause::Kind::aborted;
  finish.cause = cause_;
  if (!asked_for(cause_)) finish.consequences = told_consequences();
  finish.attempts = attempts_started_;
  if (!verified_.empty()) finish.newest_step = *verified_.rbegin();
  if (foreign_) finish.foreign_path = foreign_->path;
  finish.reached_step = reached_step_;
  finish.slow = slow_told_;
  finish.account = times_.account(finish.code != 0);
  out_.push_back(std::move(finish));
}

}  // namespace hvd
