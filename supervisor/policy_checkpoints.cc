// The policy's part about checkpoints: preparing an attempt (who sees the folder, what is there,
// what is whole), saves while ranks run, and the comparison of what the ranks loaded.
#include <algorithm>

#include "base/exit_codes.h"
#include "supervisor/policy.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
// Verifying reads all shards: at 200 MB/s this is about 350 GB a host.
constexpr Duration kPrepareLimit = 30min;
// A lock outlives the loss of its host until that is seen and the next attempt has taken it.
constexpr int kSilencesInLease = 3;
constexpr Duration kShortestLease = 2s;
// In place of the digest of a shard that could not be written.
constexpr const char* kNoShard = "none";
// How often another's lock is looked at whether it is touched.
constexpr Duration kLookAtLock = 500ms;
}  // namespace

uint32_t Policy::ask(uint32_t host, Request kind, uint64_t step) {
  const uint32_t id = next_request_++;
  requests_[id] = OpenRequest{kind, host, step};
  return id;
}

std::optional<Policy::OpenRequest> Policy::take_request(uint32_t request, uint32_t host) {
  const auto found = requests_.find(request);
  if (found == requests_.end() || found->second.host != host) return std::nullopt;
  const OpenRequest open = found->second;
  requests_.erase(found);
  return open;
}

uint32_t Policy::open_requests(Request kind) const {
  return static_cast<uint32_t>(std::count_if(requests_.begin(), requests_.end(),
                                             [&](const auto& r) { return r.second.kind == kind; }));
}

// ---- preparing ----

void Policy::prepare(Time now) {
  if (!check_machines(now)) return;
  if (job_.checkpoint_dir.empty()) return start_attempt(origin_of(nullptr));
  if (const auto* kept = newest_kept()) return go_from_memory(*kept);
  if (may_trust()) return go_trusting();
  phase_ = Phase::preparing;
  deadline_ = now + kPrepareLimit;
  requests_.clear();
  seen_by_.clear();
  watched_locks_.clear();
  look_at_locks_.reset();
  nonce_ = ".hvdlaunch-" + job_.id + "-" + std::to_string(next_request_);
  const uint32_t first = placement_.front().host;
  send(first, ProbeDirectory{ask(first, Request::probe_write, 0), job_.checkpoint_dir, nonce_, true,
                             false});
}

bool Policy::may_trust() const {
  return trusted_ && rejected_.count(trusted_->step) == 0 &&
         (!foreign_ || foreign_->step <= trusted_->step);
}

// The agents that have this checkpoint are those that will read it: whether it is still whole is
// looked at while the ranks start, and nothing is committed on top of it before that is known.
void Policy::go_trusting() {
  start_attempt(origin_of(&*trusted_));
  ask_to_verify(*trusted_);
  take_locks();
  clear_drafts();
}

void Policy::ask_to_verify(const Candidate& candidate) {
  for (const auto& [host, shards] : candidate.shards_by_host) {
    send(host, VerifyCheckpoint{ask(host, Request::verify, candidate.step), job_.checkpoint_dir,
                                candidate.step, shards});
  }
}

void Policy::prepare_late(Time now) {
  setup_failed("the agents did not answer about " + job_.checkpoint_dir + " within " +
                   format_duration(kPrepareLimit),
               now);
}

// What could be used before, a disk or a file server, may come back.
void Policy::folder_failed(const std::string& text, Time now) {
  if (attempts_started_ == 0) return setup_failed(text, now);
  Cause cause;
  cause.kind = Cause::Kind::storage;
  cause.text = text;
  fail(cause, now);
}

// A folder that cannot be used is the user's to mend: no other attempt would go better.
void Policy::setup_failed(const std::string& text, Time now, int first_code) {
  Cause cause;
  cause.kind = Cause::Kind::setup;
  cause.code = attempts_started_ == 0 ? first_code : kExitGaveUp;
  cause.text = text;
  fail(cause, now);
}

void Policy::said(uint32_t host, const DirectoryProbed& m, Time now) {
  const auto request = take_request(m.request, host);
  if (!request || phase_ != Phase::preparing) return;
  if (request->kind == Request::probe_write) {
    if (!m.error.empty()) {
      return folder_failed(
          "the checkpoint directory cannot be used on " + job_.hosts[host].name + ": " + m.error,
          now);
    }
    for (const HostPlaces& places : placement_) {
      if (places.host == host) continue;
      send(places.host, ProbeDirectory{ask(places.host, Request::probe_seen, 0),
                                       job_.checkpoint_dir, nonce_, false, false});
    }
  } else if (request->kind == Request::probe_seen) {
    seen_by_.emplace_back(host, m.seen);
  } else {
    return;
  }
  if (open_requests(Request::probe_seen) == 0) probe_done(now);
}

void Policy::probe_done(Time now) {
  const uint32_t first = placement_.front().host;
  send(first, ProbeDirectory{ask(first, Request::probe_remove, 0), job_.checkpoint_dir, nonce_,
                             false, true});
  std::string seeing = job_.hosts[first].name;
  std::string blind;
  for (const auto& [host, seen] : seen_by_) {
    std::string& names = seen ? seeing : blind;
    names += (names.empty() ? "" : ", ") + job_.hosts[host].name;
  }
  const size_t blind_count = static_cast<size_t>(
      std::count_if(seen_by_.begin(), seen_by_.end(), [](const auto& s) { return !s.second; }));
  if (blind_count > 0 && blind_count < seen_by_.size()) {
    return setup_failed(job_.checkpoint_dir + " is one folder on " + seeing + " and another on " +
                            blind + ": it must be shared by all hosts or private to each",
                        now);
  }
  folder_ = blind_count == 0 ? FolderKind::shared : FolderKind::separate;
  take_locks();
}

void Policy::take_locks() {
  for (const HostPlaces& places : placement_) {
    take_lock(places.host, 0);
    if (folder_ == FolderKind::shared) break;
  }
}

void Policy::take_lock(uint32_t host, uint64_t stale_ns) {
  LockRecord record;
  record.job = job_.id;
  record.attempt = attempt_ + 1;
  record.host = job_.hosts[host].name;
  record.launcher = job_.launched_on;
  const Duration lease = std::max<Duration>(kSilencesInLease * job_.silence, kShortestLease);
  record.lease_ns = static_cast<uint64_t>(lease.count());
  send(host, TakeLock{ask(host, Request::lock, 0), job_.checkpoint_dir, record, stale_ns});
}

void Policy::said(uint32_t host, const LockTaken& m, Time now) {
  if (!take_request(m.request, host) || phase_ != Phase::preparing) return;
  if (!m.error.empty()) {
    return folder_failed(
        "the checkpoint directory cannot be locked on " + job_.hosts[host].name + ": " + m.error,
        now);
  }
  if (m.taken) {
    watched_locks_.erase(host);
  } else {
    watch_lock(host, m, now);
    if (phase_ != Phase::preparing) return;
  }
  if (open_requests(Request::lock) == 0 && watched_locks_.empty()) list_checkpoints();
}

// Another job's lock: that job lives if its file is touched.
void Policy::watch_lock(uint32_t host, const LockTaken& m, Time now) {
  const auto [watched, first] =
      watched_locks_.try_emplace(host, WatchedLock{m.touched_ns, now, bounded(m.holder.lease_ns)});
  if (m.alive || watched->second.touched_ns != m.touched_ns) {
    return setup_failed(lock_refusal(job_.checkpoint_dir, m.holder), now);
  }
  if (first) {
    say(Say::Level::warning, lock_refusal(job_.checkpoint_dir, m.holder) + "; waiting up to " +
                                 format_duration(watched->second.lease) +
                                 " to see whether it still lives");
  }
  look_at_locks_ = now + kLookAtLock;
}

void Policy::watch_locks_again(Time now) {
  look_at_locks_.reset();
  if (phase_ != Phase::preparing) return;
  for (const auto& [host, watched] : watched_locks_) {
    take_lock(host, now - watched.since > watched.lease ? watched.touched_ns : 0);
  }
}

void Policy::list_checkpoints() {
  listings_.clear();
  for (const HostPlaces& places : placement_) {
    send(places.host, ListCheckpoints{ask(places.host, Request::list, 0), job_.checkpoint_dir});
    if (folder_ == FolderKind::shared) break;
  }
}

void Policy::said(uint32_t host, const CheckpointsListed& m, Time now) {
  if (!take_request(m.request, host) || phase_ != Phase::preparing) return;
  if (!m.error.empty()) {
    return folder_failed(
        "the checkpoint directory cannot be listed on " + job_.hosts[host].name + ": " + m.error,
        now);
  }
  listings_[host] = m;
  if (open_requests(Request::list) > 0) return;
  Candidates found =
      find_candidates(listings_, folder_, job_.hosts, placement_, job_.size, rejected_);
  for (const std::string& text : found.skipped) say(Say::Level::warning, text);
  // Attempts are numbered on over all runs, so that no unfinished save of an earlier run can be
  // taken for one of this.
  attempt_ = std::max(attempt_, found.last_attempt);
  candidates_ = std::move(found.usable);
  for (const Candidate& one : candidates_) known_.insert(one.step);
  if (candidates_.empty() && (job_.resume || attempts_started_ > 0)) find_foreign();
  verify_newest(now);
}

// What the program saved without a word to us.
void Policy::find_foreign() {
  if (foreign_) return;
  std::vector<std::string> skipped;
  const auto found = choose_foreign(listings_, job_.hosts, skipped);
  for (const std::string& text : skipped) say(Say::Level::warning, text);
  if (!found) return;
  foreign_ = ForeignCheckpoint{0, 0, found->step, job_.checkpoint_dir + "/" + found->path};
  say(Say::Level::info,
      "the newest complete checkpoint is " + foreign_->path + " (" + found->layout + ")");
}

void Policy::verify_newest(Time now) {
  defects_.clear();
  const bool foreign_is_newer =
      foreign_ && (candidates_.empty() || foreign_->step > candidates_.front().step);
  if (candidates_.empty() && !foreign_) {
    if (job_.resume && attempts_started_ == 0) {
      setup_failed("there is no whole checkpoint in " + job_.checkpoint_dir, now,
                   kExitNothingToResume);
      return;
    }
    if (had_checkpoint_) {
      setup_failed("no whole checkpoint is left in " + job_.checkpoint_dir +
                       " for the hosts that hold ranks now; not starting from the beginning",
                   now);
      return;
    }
  }
  if (candidates_.empty() || foreign_is_newer) return go(nullptr);
  ask_to_verify(candidates_.front());
}

void Policy::said(uint32_t host, const CheckpointVerified& m, Time now) {
  const auto request = take_request(m.request, host);
  if (!request) return;
  if (phase_ != Phase::preparing) return verified_late(request->step, m, now);
  HVD_CHECK(!candidates_.empty());
  defects_.insert(defects_.end(), m.defects.begin(), m.defects.end());
  const std::vector<uint32_t>& asked = candidates_.front().shards_by_host[host];
  if (m.defects.empty() && m.whole.size() < asked.size()) {
    defects_.push_back({asked.front(), job_.hosts[host].name + " could not verify its shards"});
  }
  if (open_requests(Request::verify) > 0) return;
  if (defects_.empty()) return go(&candidates_.front());
  for (const ShardDefect& defect : defects_) {
    say(Say::Level::warning,
        "checkpoint " + step_folder(candidates_.front().step) + " is skipped: " + defect.text);
  }
  known_.erase(candidates_.front().step);
  candidates_.erase(candidates_.begin());
  verify_newest(now);
}

// Of the checkpoint that the ranks are reading already.
void Policy::verified_late(uint64_t step, const CheckpointVerified& m, Time now) {
  rescue_when_all_told();
  if (!ranks_work()) return;
  if (!m.defects.empty()) return refuse_state(step, m.defects.front().text, now);
  if (open_requests(Request::verify) > 0) return;
  for (auto next = saves_.begin(); next != saves_.end();) {
    const auto save = next++;
    commit_if_whole(save->first, save->second);
  }
}

// The ranks cannot go on from what they read: another attempt takes the checkpoint before it.
void Policy::refuse_state(uint64_t step, const std::string& why, Time now) {
  Cause cause;
  cause.kind = Cause::Kind::bad_state;
  if (from_memory_) {
    kept_.clear();
    cause.text = "the state of step " + std::to_string(step) + " in memory cannot be used: " + why;
  } else {
    rejected_.insert(step);
    known_.erase(step);
    verified_.erase(step);
    trusted_.reset();
    cause.text = "checkpoint " + step_folder(step) + " cannot be used: " + why;
  }
  if (phase_ == Phase::running) fail(cause, now);
}

// Starts the attempt and puts the folder in order behind it.
void Policy::go(const Candidate* from) {
  start_attempt(origin_of(from));
  if (from != nullptr) trusted_ = *from;
  for (const HostPlaces& places : placement_) {
    if (!job_.job_file.empty()) {
      send(places.host,
           WriteJobFile{ask(places.host, Request::other, 0), job_.checkpoint_dir, job_.job_file});
    }
    if (folder_ == FolderKind::shared) break;
  }
  clear_drafts();
}

// Of attempts before this one.
void Policy::clear_drafts() {
  for (const HostPlaces& places : placement_) {
    send(places.host,
         PruneCheckpoints{ask(places.host, Request::prune, 0), job_.checkpoint_dir, attempt_, {}});
    if (folder_ == FolderKind::shared) break;
  }
}

// ---- saves ----

void Policy::said(uint32_t host, const ShardSaved& m, Time) {
  const bool after_failure = rescues();
  if (!current(m.attempt) || !is_rank_of(host, m.shard.rank)) return;
  if (!ranks_work() && !after_failure) return;
  Save& save = saves_[m.step];
  save.shards.resize(job_.size);
  Shard& shard = save.shards[m.shard.rank];
  if (!shard.digest.empty() && !after_failure) return;
  if (shard.digest.empty()) ++save.reported;
  shard = m.shard;
  if (shard.digest.empty()) shard.digest = kNoShard;
  if (!m.error.empty() && save.error.empty() && !after_failure) {
    save.error = rank_name(m.shard.rank) + ": " + m.error;
  }
  if (m.shard.rank == 0 || (after_failure && save.note.empty())) save.note = m.note;
  if (!after_failure) return commit_if_whole(m.step, save);
  handed_in_.insert(m.shard.rank);
  rescue_when_all_told();
}

// ---- what is left after a failure ----

// The stop under way is for a failure behind which the job goes on: what ranks hand in counts.
bool Policy::rescues() const {
  if (phase_ != Phase::stopping || job_.checkpoint_dir.empty()) return false;
  switch (cause_.kind) {
    case Cause::Kind::exited:
    case Cause::Kind::killed:
    case Cause::Kind::left_early:
    case Cause::Kind::aborted:
    case Cause::Kind::agent_ended:
    case Cause::Kind::link_lost:
    case Cause::Kind::host_silent:
    case Cause::Kind::stalled:
      return true;
    default:
      return false;
  }
}

// One rank's state is all that there is, if it is the same on all; on folders of their own, each
// host must have one.
bool Policy::can_be_rescued(const Save& save) const {
  if (!save.error.empty()) return false;
  std::vector<Shard> shards;
  for (const Shard& shard : save.shards) {
    if (!shard.digest.empty() && shard.digest != kNoShard) shards.push_back(shard);
  }
  if (shards.size() == job_.size) return true;
  if (!serves_any_rank(shards)) return false;
  return folder_ == FolderKind::shared ||
         std::all_of(placement_.begin(), placement_.end(), [&](const HostPlaces& host) {
           return std::any_of(shards.begin(), shards.end(),
                              [&](const Shard& shard) { return host_of(shard.rank) == host.host; });
         });
}

void Policy::rescue_when_all_told() {
  if (!rescues() || handed_in_.empty() || open_requests(Request::verify) > 0) return;
  const bool all =
      std::includes(handed_in_.begin(), handed_in_.end(), working_.begin(), working_.end());
  if (all) rescue();
}

// Commits the newest state that was handed in, and tells those who have another that it is not
// theirs.
void Policy::rescue() {
  handed_in_.clear();
  bool committed = false;
  for (auto next = saves_.rbegin(); next != saves_.rend(); ++next) {
    auto& [step, save] = *next;
    const bool newer = verified_.empty() || step > *verified_.rbegin();
    if (!committed && newer && save.commits_open == 0 && can_be_rescued(save)) {
      committed = true;
      commit(step, save);
    } else if (save.commits_open == 0) {
      send_to_active(
          SaveResult{attempt_, step, "the ranks that are left go on from another state"});
    }
  }
}

void Policy::commit_if_whole(uint64_t step, Save& save) {
  const bool waits = save.reported < job_.size || save.commits_open > 0;
  if (!waits && open_requests(Request::verify) == 0) commit(step, save);
}

void Policy::commit(uint64_t step, Save& save) {
  if (!save.error.empty()) return save_done(step, save);
  Manifest& manifest = save.manifest;
  manifest.job = job_.id;
  manifest.attempt = attempt_;
  manifest.step = step;
  manifest.size = job_.size;
  manifest.note = save.note;
  manifest.shards = save.shards;
  std::erase_if(manifest.shards, [](const Shard& shard) {
    return shard.digest.empty() || shard.digest == kNoShard;
  });
  manifest.rescued = manifest.shards.size() < job_.size;
  manifest.replicated = serves_any_rank(manifest.shards);
  const std::string text = manifest_text(manifest);
  for (const HostPlaces& places : placement_) {
    if (hosts_[places.host].link != Link::up) continue;
    ++save.commits_open;
    send(places.host, CommitCheckpoint{ask(places.host, Request::commit, step), job_.checkpoint_dir,
                                       attempt_, step, text});
    if (folder_ == FolderKind::shared) break;
  }
}

void Policy::said(uint32_t host, const Performed& m, Time now) {
  const auto request = take_request(m.request, host);
  if (!request) return;
  if (request->kind != Request::commit) {
    if (!m.error.empty()) say(Say::Level::warning, job_.hosts[host].name + ": " + m.error);
    if (phase_ == Phase::stopping) stopped_all(now);
    return;
  }
  const auto found = saves_.find(request->step);
  if (found == saves_.end()) return;
  Save& save = found->second;
  if (!m.error.empty() && save.error.empty()) save.error = job_.hosts[host].name + ": " + m.error;
  if (--save.commits_open == 0) save_done(request->step, save);
  if (phase_ == Phase::stopping) stopped_all(now);
}

void Policy::save_done(uint64_t step, Save& save) {
  send_to_active(SaveResult{attempt_, step, save.error});
  if (save.error.empty()) {
    say(save.manifest.rescued ? Say::Level::info : Say::Level::detail,
        "checkpoint of step " + std::to_string(step) + " is committed" +
            (save.manifest.rescued ? ", by the ranks that are left" : ""));
    known_.insert(step);
    verified_.insert(step);
    rejected_.erase(step);
    trusted_ = committed_candidate(save.manifest, placement_);
    committed_ever_ = had_checkpoint_ = true;
    times_.saved(step);
    note_saved();
    prune();
  } else {
    say(Say::Level::warning,
        "the checkpoint of step " + std::to_string(step) + " was not saved: " + save.error);
  }
  saves_.erase(step);
}

void Policy::prune() {
  const std::vector<uint64_t> steps = steps_to_prune(known_, verified_, job_.checkpoint_keep);
  if (steps.empty()) return;
  for (const uint64_t step : steps) {
    known_.erase(step);
    verified_.erase(step);
  }
  for (const HostPlaces& places : placement_) {
    send(places.host,
         PruneCheckpoints{ask(places.host, Request::prune, 0), job_.checkpoint_dir, 0, steps});
    if (folder_ == FolderKind::shared) break;
  }
}

// ---- loads ----

void Policy::said(uint32_t host, const StateLoaded& m, Time now) {
  if (!current(m.attempt) || !ranks_work() || !is_rank_of(host, m.rank)) return;
  loaded_[m.rank] = m;
  if (loaded_.size() < job_.size) return;
  std::string error;
  std::vector<std::string> digests;
  for (const auto& [rank, loaded] : loaded_) {
    if (!loaded.error.empty() && error.empty()) error = rank_name(rank) + ": " + loaded.error;
    digests.push_back(loaded.state_digest);
  }
  if (error.empty()) error = compare_states(digests);
  loaded_.clear();
  send_to_active(LoadResult{attempt_, error});
  if (!error.empty() && phase_ == Phase::running) refuse_state(resumed_step_, error, now);
}

}  // namespace hvd
