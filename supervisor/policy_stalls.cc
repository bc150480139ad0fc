// The policy's part about ranks that run and make no progress. Agents say which; before anything is
// said or done, all hosts are asked what their ranks do, so that the one that holds up the others
// is told from those. Then the user is warned, again each time the silence has doubled, or the
// attempt fails by the stalled rank, as soon as it is kept where all of them wait.
#include <algorithm>

#include "supervisor/policy.h"
#include "supervisor/stalls.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
// Stragglers that the report repeats.
constexpr size_t kSlowTold = 10;
// For all agents to say what their ranks do: one that is cut off does not hold the others up.
constexpr Duration kLookLimit = 1s;
// Stacks may cost this part of the stall limit, and no more than that.
constexpr int kStacksShare = 4;
constexpr Duration kLongestStacks = 10s;
// For the answers to travel.
constexpr Duration kStacksMargin = 200ms;
}  // namespace

void Policy::said(uint32_t host, const RankStalled& m, Time now) {
  if (!current(m.attempt) || phase_ != Phase::running || !is_rank_of(host, m.rank)) return;
  stalled_.insert(m.rank);
  if (!look_until_ && !warn_again_ && !stall_) look_at_ranks(now);
}

void Policy::said(uint32_t host, const RankMoved& m, Time now) {
  if (!current(m.attempt) || phase_ != Phase::running || !is_rank_of(host, m.rank)) return;
  if (stalled_.erase(m.rank) == 0 || !stalled_.empty() || !warn_again_) return;
  say(Say::Level::info,
      "the ranks make progress again after " + format_duration(now - stalled_since_));
  warn_again_.reset();
}

// Slow is not dead: it is said, and again when it changes.
void Policy::watch_pace(uint32_t host, const Beat& beat) {
  const auto places = std::find_if(placement_.begin(), placement_.end(),
                                   [&](const HostPlaces& h) { return h.host == host; });
  if (phase_ != Phase::running || places == placement_.end()) return;
  std::vector<RankStep> steps = beat.steps;
  std::erase_if(steps, [&](const RankStep& one) {
    return one.rank < places->places.front().rank || one.rank > places->places.back().rank;
  });
  stragglers_.take(beat.agent_time, steps);
  if (!stragglers_.judge()) return;
  const std::optional<Straggler>& found = stragglers_.found();
  if (!found && slow_) {
    say(Say::Level::info, rank_name(*slow_) + " is as fast as others again");
    slow_.reset();
  } else if (found && slow_ != found->rank) {
    slow_ = found->rank;
    const std::string text = rank_name(*slow_) + " is slow: it takes " +
                             format_duration(found->own) + " of its own for a step, others " +
                             format_duration(found->others);
    say(Say::Level::warning, text);
    if (slow_told_.size() < kSlowTold) slow_told_.push_back(text);
  }
}

void Policy::look_at_ranks(Time now) {
  warn_again_.reset();
  ++look_;
  views_.clear();
  looked_at_ = looked_at();
  send_to_active(LookAtRanks{attempt_, look_});
  look_until_ = now + std::min<Duration>(kLookLimit, job_.stall_timeout);
}

void Policy::said(uint32_t host, const RanksSeen& m, Time now) {
  if (!current(m.attempt) || m.look != look_ || !look_until_ || looked_at_.erase(host) == 0) return;
  for (const RankView& view : m.ranks) {
    if (is_rank_of(host, view.rank)) views_[view.rank] = view;
  }
  if (looked_at_.empty()) judge_stall(now);
}

void Policy::judge_stall(Time now) {
  look_until_.reset();
  if (stalled_.empty()) return;
  Duration quiet = job_.stall_timeout;
  for (const uint32_t rank : stalled_) {
    if (views_.count(rank) > 0) quiet = std::max(quiet, bounded(views_[rank].quiet_ns));
  }
  const auto stall_ns = static_cast<uint64_t>(job_.stall_timeout.count());
  const std::optional<Suspect> suspect = find_suspect(views_, stall_ns);
  const std::string text = describe_stall(suspect, quiet);
  Cause cause;
  cause.kind = Cause::Kind::stalled;
  cause.unnoticed = quiet;
  cause.text = text;
  if (suspect) {
    cause.rank = suspect->rank;
    cause.host = host_of(suspect->rank);
  }
  if (job_.stall_action == StallAction::warn && rule_for(cause) == nullptr) {
    say(Say::Level::warning, text);
    take_stacks(Duration::zero());
    stalled_since_ = now - quiet;
    warn_again_ = now + quiet;
    return;
  }
  stall_ = std::move(cause);
  const Duration limit = std::min<Duration>(job_.stall_timeout / kStacksShare, kLongestStacks);
  stacks_until_ = now + limit + kStacksMargin;
  take_stacks(limit);
}

void Policy::take_stacks(Duration limit) {
  stacks_asked_ = looked_at();
  send_to_active(TakeStacks{attempt_, look_, static_cast<uint64_t>(limit.count())});
}

void Policy::said(uint32_t host, const StacksTaken& m, Time now) {
  if (!current(m.attempt) || m.request != look_ || stacks_asked_.erase(host) == 0) return;
  if (stall_ && stacks_asked_.empty()) act_on_stall(now);
}

void Policy::act_on_stall(Time now) {
  stacks_until_.reset();
  const Cause cause = *std::exchange(stall_, std::nullopt);
  // The ranks may have gone on meanwhile.
  if (!stalled_.empty()) fail(cause, now);
}

// Hosts that can be asked what their ranks do.
std::set<uint32_t> Policy::looked_at() const {
  std::set<uint32_t> hosts;
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].active && hosts_[host].link == Link::up) hosts.insert(host);
  }
  return hosts;
}

std::string Policy::describe_stall(const std::optional<Suspect>& suspect, Duration quiet) const {
  const std::string since = "no progress for " + format_duration(quiet) + ": ";
  if (suspect) {
    std::string others;
    if (suspect->others > 0) others = ", and " + std::to_string(suspect->others) + " more";
    return since + rank_name(suspect->rank) + (suspect->why.empty() ? "" : " ") + suspect->why +
           others;
  }
  return since + rank_name(*stalled_.begin()) +
         (stalled_.size() > 1 ? " and " + std::to_string(stalled_.size() - 1) + " more" : "") +
         "; which rank holds them up cannot be told";
}

void Policy::stall_tick(Time now) {
  if (look_until_ && *look_until_ <= now) judge_stall(now);
  if (stacks_until_ && *stacks_until_ <= now) act_on_stall(now);
  if (!warn_again_ || *warn_again_ > now || phase_ != Phase::running) return;
  look_at_ranks(now);
}

void Policy::forget_stalls() {
  stalled_.clear();
  look_until_.reset();
  warn_again_.reset();
  stall_.reset();
  stacks_until_.reset();
}

}  // namespace hvd
