// The policy's part about states that ranks keep in their agents' memory (hvd_checkpoint_keep). A
// rank has two copies and writes over the older one only when it was told that all ranks have the
// newer one: a state of all ranks is always there. It goes with the hosts that hold it.
#include "supervisor/policy.h"

namespace hvd {

namespace {

std::string mebibytes(uint64_t bytes) {
  constexpr uint64_t kMiB = 1u << 20;
  return std::to_string((bytes + kMiB - 1) / kMiB) + " MiB";
}

}  // namespace

void Policy::said(uint32_t host, const ShardKept& m, Time) {
  if (!current(m.attempt) || !is_rank_of(host, m.shard.rank)) return;
  if (phase_ != Phase::running && phase_ != Phase::stopping) return;
  KeptStep& kept = kept_[{m.step, m.attempt}];
  kept.shards.resize(job_.size);
  kept.holders.resize(job_.size);
  kept.told.insert(m.shard.rank);
  if (m.error.empty()) {
    kept.shards[m.shard.rank] = m.shard;
    kept.holders[m.shard.rank] = host;
    forget_older(kept_, m.shard.rank);
  } else if (kept.error.empty()) {
    kept.error = rank_name(m.shard.rank) + ": " + m.error;
  }
  if (kept.told.size() < job_.size) return;
  send_to_active(KeepResult{attempt_, m.step, kept.error});
  if (!kept.error.empty()) {
    say(Say::Level::warning,
        "the state of step " + std::to_string(m.step) + " is not kept in memory: " + kept.error);
    kept_.erase({m.step, m.attempt});
    return;
  }
  if (!std::exchange(kept_told_, true)) {
    say(Say::Level::info, "the agents keep each rank's state in memory, twice " +
                              mebibytes(m.shard.length) + " a rank");
  }
  // Of attempts before, none is as new as this, whatever its step.
  std::erase_if(kept_, [&](const auto& one) {
    const auto& [step, attempt] = one.first;
    return attempt < m.attempt || step < m.step;
  });
}

// The newest that all hosts of the placement can go on from, unless a checkpoint is newer.
const KeptSteps::value_type* Policy::newest_kept() const {
  uint64_t saved = 0;
  for (const uint64_t step : verified_) {
    if (rejected_.count(step) == 0) saved = step;
  }
  for (auto kept = kept_.rbegin(); kept != kept_.rend(); ++kept) {
    if (kept->first.first < saved || (foreign_ && kept->first.first < foreign_->step)) break;
    const bool same_size = kept->second.shards.size() == job_.size;
    if (same_size && serves(kept->second, placement_)) return &*kept;
  }
  return nullptr;
}

// Nothing is read, and the folder is as it was: the attempt before had it.
void Policy::go_from_memory(const KeptSteps::value_type& kept) {
  start_attempt({kResumeFromMemory, kept.first.first, &kept});
  take_locks();
  clear_drafts();
}

}  // namespace hvd
