// The policy's part about hosts: connecting them, what their ends mean, who takes the ranks of one
// that is lost, and the way back of those that were.
//
// Whoever holds no ranks and was up, or is to be, is a spare: the user's own, and every host whose
// ranks went to another. Spares that are lost are called again and again in the background, less
// and less often. A host that fails repeatedly is set aside (supervisor/host_ledger.h) where a
// spare can take its ranks; else the job waits until it has cooled down.
#include <algorithm>
#include <utility>

#include "base/exit_codes.h"
#include "supervisor/policy.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
// After a first refusal the other hosts get this long, so that all bad ones are named at once.
constexpr Duration kNameTheOthers = 2s;
constexpr Duration kRetryPause = 1s;
constexpr Duration kLongestRetryPause = 5min;
constexpr uint32_t kDoublings = 9;
// In later attempts, a host that is not there again by then gives way to a spare that is.
constexpr Duration kSpareAfter = 3s;
// So many failures of ranks in a row on one host are worth a word.
constexpr uint32_t kSuspicious = 3;
}  // namespace

void Policy::on(const HostUp& event, Time now) {
  HostState& host = hosts_[event.host];
  host.link = Link::up;
  host.refusals = 0;
  host.retry.reset();
  host.hello = event.hello;
  host.address = event.address;
  host.own_address = event.own_address;
  host.active = false;
  forget_host(kept_, event.host);  // it is another agent
  if (phase_ == Phase::taking_over && event.held) {
    takeover_.held[event.host] = *event.held;
    return;
  }
  if (holds_ranks(event.host)) {
    trusted_.reset();
  } else if (attempts_started_ > 0) {
    say(Say::Level::info, job_.hosts[event.host].name + " stands by as a spare");
  }
  if (phase_ == Phase::backing_off) return wait_for_hosts(now);
  if (phase_ == Phase::running) return leave_unlisted(now);
  if (phase_ != Phase::gathering) return;
  fill_gaps(now);
  open_proofs();
  gather_on(now);
}

void Policy::on(const HostDown& event, Time now) {
  if (event.end == HostEnd::taken) return taken_over(event.reason);
  HostState& host = hosts_[event.host];
  const bool was_up = std::exchange(host.link, Link::none) == Link::up;
  host.active = false;
  host.last_reason = event.reason;
  ++host.refusals;
  // Of an agent that cannot be heard the lease is over by then.
  if (was_up) host.fenced = event.end == HostEnd::lost ? now + job_.silence : now;
  std::erase_if(requests_, [&](const auto& r) { return r.second.host == event.host; });
  forget_proofs(event.host);
  forget_host(kept_, event.host);
  if (phase_ == Phase::taking_over) return not_taken(event, now);
  if (!holds_ranks(event.host)) {
    if (host.leaving) return;
    say(host.refusals == 1 ? Say::Level::warning : Say::Level::detail,
        "spare lost: " + event.reason);
    if (was_up) host_failed(event.host, now);
    return retry_later(event.host, now);
  }
  Cause cause;
  cause.host = event.host;
  cause.text = event.reason;
  if (event.end == HostEnd::silent) cause.unnoticed = job_.silence;
  cause.kind = event.end == HostEnd::lost     ? Cause::Kind::link_lost
               : event.end == HostEnd::silent ? Cause::Kind::host_silent
                                              : Cause::Kind::agent_ended;
  switch (phase_) {
    case Phase::gathering:
    case Phase::proving:
      if (phase_ == Phase::proving) stop_proving();
      // A spare is tried at once; with none, the host again until the deadline.
      if (attempts_started_ > 0) say(Say::Level::warning, event.reason);
      if (was_up) host_failed(event.host, now);
      if (!take_spare(event.host, now)) host.retry = now + kRetryPause;
      gather_on(now);
      break;
    case Phase::preparing:
    case Phase::running:
      fail(cause, now);
      break;
    case Phase::taking_over:
    case Phase::stopping:
    case Phase::backing_off:
      if (event.end != HostEnd::ended) say(Say::Level::warning, event.reason);
      host_failed(event.host, now);
      if (gives_up_ranks(cause)) take_spare(event.host, now);
      if (phase_ == Phase::stopping) stopped_all(now);
      break;
    case Phase::done:
      break;
  }
}

// ---- what is held against hosts ----

void Policy::host_failed(uint32_t host, Time now) {
  if (hosts_[host].leaving) return;
  const bool known = ledger_.excluded(host);
  ledger_.failed(host, now);
  hosts_[host].set_aside = !ledger_.usable(host, now);
  out_.push_back(HostFailed{host, hosts_[host].last_reason});
  const std::string text =
      job_.hosts[host].name + " failed " + std::to_string(ledger_.failures(host)) + " times";
  if (ledger_.excluded(host)) {
    if (!known) say(Say::Level::warning, text + ": it is excluded from this run");
  } else if (!ledger_.usable(host, now)) {
    say(Say::Level::warning,
        text + ": it is set aside for " + format_duration(ledger_.cools_until(host) - now));
  }
}

// Of a rank's own end, or its stall. Programs fail on good hosts, but not always on the same one.
void Policy::rank_failed(uint32_t host) {
  const uint32_t in_a_row = ledger_.rank_failed(host);
  if (placement_.size() < 2 || in_a_row % kSuspicious != 0) return;
  say(Say::Level::warning, "the last " + std::to_string(in_a_row) + " failures were of ranks on " +
                               job_.hosts[host].name + ": it may be the host's fault");
}

// ---- hosts that come and go ----

void Policy::on(const HostsListed& event, Time now) {
  if (phase_ == Phase::done) return;
  hosts_.resize(job_.hosts.size());
  ledger_.grow(job_.hosts.size());
  for (const uint32_t host : event.come) host_came(host);
  for (const uint32_t host : event.gone) host_went(host);
  if (phase_ == Phase::running) leave_unlisted(now);
}

void Policy::host_came(uint32_t host) {
  HostState& state = hosts_[host];
  state.unlisted = state.leaving = false;
  if (holds_ranks(host) || ledger_.excluded(host)) return;
  state.spare = true;
  state.refusals = 0;
  if (state.link != Link::none) return;
  state.retry.reset();
  state.link = Link::connecting;
  out_.push_back(Connect{host, false});
}

void Policy::host_went(uint32_t host) {
  HostState& state = hosts_[host];
  state.unlisted = true;
  const std::string text = job_.hosts[host].name + " is not listed any more";
  if (holds_ranks(host)) {
    return say(Say::Level::warning,
               text + (can_go_on() ? ": its ranks stay there until a spare can take them"
                                   : ": its ranks stay there, since the job could not go on"));
  }
  say(Say::Level::info, text);
  state.retry.reset();
  if (state.link == Link::none) return;
  state.link = Link::none;
  out_.push_back(Drop{host});
}

// What is planned waits for a spare that is up, and is done for all hosts at once.
void Policy::leave_unlisted(Time now) {
  if (!can_go_on()) return;
  std::string names;
  std::optional<uint32_t> first;
  for (const HostPlaces& places : placement_) {
    if (!hosts_[places.host].unlisted) continue;
    const std::optional<uint32_t> spare = find_spare(places.host, now);
    if (!spare || hosts_[*spare].link != Link::up) continue;
    hosts_[places.host].leaving = true;
    names += (first ? ", " : "") + job_.hosts[places.host].name;
    if (!first) first = places.host;
  }
  if (!first) return;
  Cause cause = preemption_of(*first, "");
  cause.text = names + " is not listed any more";
  end_in_order(cause, cause.text, job_.grace, now);
}

// ---- spares ----

// The agent of a host can soon be there again, but a spare that is up is there now. Where every
// host keeps checkpoints of its own, its part is worth the wait.
bool Policy::gives_up_ranks(const Cause& cause) const {
  if (cause.kind == Cause::Kind::host_silent) return true;
  const bool keeps_shards = !job_.checkpoint_dir.empty() && folder_ == FolderKind::separate;
  return cause.kind == Cause::Kind::agent_ended && !keeps_shards;
}

bool Policy::can_stand_in(uint32_t host, size_t ranks, Time now) const {
  const HostState& state = hosts_[host];
  if (holds_ranks(host) || !state.spare || state.leaving || state.unlisted) return false;
  if (job_.hosts[host].slots < ranks || !ledger_.usable(host, now)) return false;
  return state.link == Link::up || (state.link == Link::connecting && state.refusals == 0);
}

std::optional<uint32_t> Policy::find_spare(uint32_t lost, Time now) const {
  const auto lost_places = std::find_if(placement_.begin(), placement_.end(),
                                        [&](const HostPlaces& h) { return h.host == lost; });
  HVD_CHECK(lost_places != placement_.end());
  std::optional<uint32_t> best;
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (!can_stand_in(host, lost_places->places.size(), now)) continue;
    if (!best || (hosts_[*best].link != Link::up && hosts_[host].link == Link::up)) best = host;
  }
  return best;
}

// Ranks of a host that may still run there are nobody else's.
bool Policy::take_spare(uint32_t lost, Time now) {
  const std::optional<uint32_t> spare = find_spare(lost, now);
  if (!spare || now < hosts_[lost].fenced) return false;
  // Before the first attempt it was kept for the end of the job, which this averts.
  const std::string& why = hosts_[lost].last_reason;
  if (attempts_started_ == 0 && !why.empty()) say(Say::Level::warning, why);
  say(Say::Level::info,
      "the spare " + job_.hosts[*spare].name + " takes the ranks of " + job_.hosts[lost].name);
  placement_ = replace_host(placement_, lost, *spare);
  trusted_.reset();
  hosts_[lost].spare = true;
  hosts_[lost].retry.reset();
  if (hosts_[lost].link == Link::none) retry_later(lost, now);
  return true;
}

// A spare that has come takes the place of a host that does not.
void Policy::fill_gaps(Time now) {
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    const bool gone = hosts_[host].link != Link::up && hosts_[host].refusals > 0;
    if (gone && holds_ranks(host)) take_spare(host, now);
  }
}

void Policy::retry_later(uint32_t host, Time now) {
  HostState& state = hosts_[host];
  const bool needless = state.unlisted && !holds_ranks(host);
  if (state.leaving || needless || ledger_.excluded(host) || !state.spare) return;
  const uint32_t doublings = std::min(std::max(state.refusals, 1u) - 1, kDoublings);
  const Duration pause =
      phase_ == Phase::gathering
          ? kRetryPause
          : std::min<Duration>(kRetryPause * (1 << doublings), kLongestRetryPause);
  state.retry = std::max(now + pause, ledger_.cools_until(host));
}

bool Policy::may_retry(uint32_t host) const {
  const HostState& state = hosts_[host];
  if (!state.retry || state.link != Link::none || attempts_started_ == 0) return false;
  return phase_ == Phase::gathering || !holds_ranks(host);
}

void Policy::retry_hosts(Time now) {
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (!may_retry(host) || *hosts_[host].retry > now) continue;
    hosts_[host].retry.reset();
    hosts_[host].link = Link::connecting;
    out_.push_back(Connect{host, holds_ranks(host)});
  }
}

// Between two attempts: until the pause is over, and until hosts that must hold ranks again have
// cooled down. A spare that comes ends the wait for one.
void Policy::wait_for_hosts(Time now) {
  Time until = pause_until_;
  std::string waits;
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (!holds_ranks(host) || hosts_[host].leaving || !hosts_[host].set_aside) continue;
    if (take_spare(host, now)) continue;
    const Time end = find_spare(host, now) ? hosts_[host].fenced : ledger_.cools_until(host);
    if (end <= now) continue;
    until = std::max(until, end);
    waits += (waits.empty() ? "" : ", ") + job_.hosts[host].name;
  }
  if (until <= now) return gather(now);
  if (phase_ != Phase::backing_off && !waits.empty()) {
    say(Say::Level::info, "no spare can take the ranks of " + waits + " now: waiting for " +
                              format_duration(until - now));
  }
  phase_ = Phase::backing_off;
  deadline_ = until;
}

// ---- gathering ----

void Policy::gather(Time now) {
  phase_ = Phase::gathering;
  if (const auto left = replace_leaving(now)) {
    cause_ = preemption_of(*left, "");
    return finish_with_cause();
  }
  // Channels have the start deadline themselves and give the better reason: this one is behind it.
  gather_until_ = now + job_.start_timeout + kNameTheOthers;
  deadline_ = gather_until_;
  first_refusal_ = false;
  spare_after_.reset();
  if (attempts_started_ > 0) spare_after_ = now + kSpareAfter;
  for (const HostPlaces& places : placement_) {
    HostState& host = hosts_[places.host];
    host.retry.reset();
    host.set_aside = false;
    if (host.link != Link::none) continue;
    host.link = Link::connecting;
    out_.push_back(Connect{places.host});
    // A spare may take its ranks only then.
    if (host.fenced > now && find_spare(places.host, now)) {
      gather_until_ = std::max(gather_until_, host.fenced + kNameTheOthers);
      deadline_ = gather_until_;
    }
  }
  gather_on(now);
}

void Policy::gather_on(Time now) {
  bool all_up = true;
  bool any_connecting = false;
  bool any_down = false;
  for (const HostPlaces& places : placement_) {
    const Link link = hosts_[places.host].link;
    all_up = all_up && link == Link::up;
    any_connecting = any_connecting || link == Link::connecting;
    any_down = any_down || link == Link::none;
  }
  if (all_up) return prove(now);
  if (attempts_started_ > 0 || !any_down) return;
  if (!any_connecting) return gather_failed();
  if (!first_refusal_) deadline_ = std::min(*deadline_, now + kNameTheOthers);
  first_refusal_ = true;
}

void Policy::replace_late_hosts(Time now) {
  spare_after_.reset();
  for (const HostPlaces& places : Placement(placement_)) {
    if (hosts_[places.host].link == Link::up) continue;
    const std::optional<uint32_t> spare = find_spare(places.host, now);
    if (!spare || hosts_[*spare].link != Link::up) continue;
    if (!take_spare(places.host, now))
      spare_after_ = earlier(spare_after_, hosts_[places.host].fenced);
  }
  gather_on(now);
}

void Policy::gather_failed() {
  std::string text;
  for (const HostPlaces& places : placement_) {
    const HostState& host = hosts_[places.host];
    if (host.link == Link::up) continue;
    std::string why = host.last_reason;
    if (why.empty() || host.link == Link::connecting) {
      if (first_refusal_ && attempts_started_ == 0) continue;
      why = job_.hosts[places.host].name + " did not answer within " +
            format_duration(job_.start_timeout);
    }
    text += (text.empty() ? "" : "\n") + why;
  }
  say(Say::Level::error, text);
  if (attempts_started_ == 0) {
    cause_ = Cause{};
    cause_.kind = Cause::Kind::setup;
    cause_.code = kExitNoHosts;
    cause_.text = text;
  }
  finish_with_cause();
}

}  // namespace hvd
