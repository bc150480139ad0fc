// The policy's part about preemption: a host that will be taken away soon, or the user's notice
// that the whole job will be. The ranks are stopped in order, with the grace that was promised to
// whoever ends them, and may save. Then the job goes on without the hosts that leave if spares can
// take their ranks, at no cost of the budget; else it ends.
#include <algorithm>
#include <csignal>
#include <utility>

#include "supervisor/policy.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
// Whoever sent TERM sends KILL behind the grace: ours comes before.
constexpr Duration kBeforeTheirKill = 2s;

Duration grace_of(const Job& job) {
  return job.grace - std::min<Duration>(kBeforeTheirKill, job.grace / 10);
}
}  // namespace

Cause Policy::preemption_of(uint32_t host, const std::string& reason) const {
  Cause cause;
  cause.kind = Cause::Kind::preempted;
  cause.host = host;
  cause.signal = SIGTERM;
  cause.text = job_.hosts[host].name + " is preempted" + (reason.empty() ? "" : ": " + reason);
  return cause;
}

void Policy::said(uint32_t host, const Leaving& m, Time now) {
  if (std::exchange(hosts_[host].leaving, true)) return;
  const Cause cause = preemption_of(host, m.reason);
  if (!holds_ranks(host)) {
    say(Say::Level::info, cause.text);
    send(host, Goodbye{0});
    return;
  }
  switch (phase_) {
    case Phase::gathering:
    case Phase::proving:
    case Phase::preparing:
      say(Say::Level::warning, cause.text);
      if (phase_ == Phase::proving) stop_proving();
      return gather(now);
    case Phase::running:
      return end_in_order(cause, cause.text, grace_of(job_), now);
    case Phase::stopping:
      say(Say::Level::warning, cause.text);
      // The end of a rank by the same TERM was told first.
      if (cause_.kind == Cause::Kind::killed && cause_.signal == SIGTERM && cause_.host == host) {
        cause_ = cause;
      }
      return;
    case Phase::backing_off:
      return say(Say::Level::warning, cause.text);
    case Phase::taking_over:
    case Phase::done:
      return;
  }
}

void Policy::preempt_all(const std::string& signal, int number, Time now) {
  Cause cause;
  cause.kind = Cause::Kind::preempted;
  cause.signal = number;
  cause.text = "preempted by " + signal;
  end_in_order(cause, cause.text, grace_of(job_), now);
}

// Spares take the ranks of hosts that leave. Returns one that finds none.
std::optional<uint32_t> Policy::replace_leaving(Time now) {
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (!hosts_[host].leaving || !holds_ranks(host)) continue;
    if (!take_spare(host, now)) {
      // Of one that is not listed any more, nobody said when it will be gone.
      if (!hosts_[host].unlisted) return host;
      hosts_[host].leaving = false;
      continue;
    }
    if (hosts_[host].link == Link::up) send(host, Goodbye{0});
  }
  return std::nullopt;
}

// All ranks were stopped for the preemption.
void Policy::preempted(Time now) {
  last_failure_ = cause_;
  if (cause_.host && !last_word_ && can_go_on() && !replace_leaving(now)) return relaunch(now);
  if (last_word_) {
    const bool saved = cause_.saved;
    cause_ = *last_word_;
    cause_.saved = saved;
  }
  finish_with_cause();
}

}  // namespace hvd
