#include "supervisor/checkpoints.h"

#include <algorithm>

namespace hvd {

namespace {

bool has(const std::vector<uint32_t>& ranks, uint32_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::string skip(uint64_t step, const std::string& why) {
  return "checkpoint " + step_folder(step) + " is not whole: " + why;
}

const ListedCheckpoint* find_step(const CheckpointsListed& listing, uint64_t step) {
  for (const ListedCheckpoint& one : listing.found) {
    if (one.step == step) return &one;
  }
  return nullptr;
}

// Shards that one host will read, out of those it has, when it holds `places` of `size` ranks.
// Empty with `why` set if one is missing.
std::vector<uint32_t> shards_to_read(const HostPlaces& host, const Manifest& manifest,
                                     std::vector<uint32_t> present, uint32_t size,
                                     std::string& why) {
  std::erase_if(present, [&](uint32_t rank) { return shard_of(manifest, rank) == nullptr; });
  std::vector<uint32_t> wanted;
  for (const Place& place : host.places) {
    const uint32_t own = place.rank % manifest.size;
    if (size == manifest.size && !manifest.replicated && !has(present, own)) {
      why = shard_file(own) + " is missing";
      return {};
    }
    if (has(present, own) && !has(wanted, own)) wanted.push_back(own);
  }
  // State that is the same everywhere can be read from any shard.
  if (wanted.empty() && manifest.replicated && !present.empty()) wanted.push_back(present.front());
  if (wanted.empty()) why = "no shard is there";
  return wanted;
}

// Spreads all shards over the hosts, each host those of its own ranks first.
std::map<uint32_t, std::vector<uint32_t>> spread(const Placement& placement, uint32_t size,
                                                 const std::vector<Shard>& shards) {
  std::vector<uint32_t> host_of(size);
  for (const HostPlaces& host : placement) {
    for (const Place& place : host.places) host_of[place.rank] = host.host;
  }
  std::map<uint32_t, std::vector<uint32_t>> by_host;
  for (const Shard& shard : shards) by_host[host_of[shard.rank % size]].push_back(shard.rank);
  return by_host;
}

// Empty if this step can be resumed, else why not; fills the candidate.
std::string judge_separate(const std::map<uint32_t, CheckpointsListed>& listings,
                           const std::vector<Host>& hosts, const Placement& placement,
                           uint32_t size, const std::string& text, Candidate& candidate) {
  for (const HostPlaces& host : placement) {
    const auto listing = listings.find(host.host);
    const ListedCheckpoint* here =
        listing == listings.end() ? nullptr : find_step(listing->second, candidate.step);
    const std::string where = "on " + hosts[host.host].name + " ";
    if (here == nullptr) return where + "it is not there";
    if (here->manifest != text) return where + "its manifest is another one";
    std::string why;
    auto shards = shards_to_read(host, candidate.manifest, here->shards, size, why);
    if (!why.empty()) return where + why;
    candidate.shards_by_host[host.host] = std::move(shards);
  }
  return "";
}

std::string judge_shared(const ListedCheckpoint& listed, const Placement& placement, uint32_t size,
                         Candidate& candidate) {
  for (const Shard& shard : candidate.manifest.shards) {
    if (!has(listed.shards, shard.rank)) return shard_file(shard.rank) + " is missing";
  }
  candidate.shards_by_host = spread(placement, size, candidate.manifest.shards);
  return "";
}

}  // namespace

Candidates find_candidates(const std::map<uint32_t, CheckpointsListed>& listings, FolderKind kind,
                           const std::vector<Host>& hosts, const Placement& placement,
                           uint32_t size, const std::set<uint64_t>& rejected) {
  Candidates result;
  std::map<uint64_t, const ListedCheckpoint*> steps;
  for (const auto& [host, listing] : listings) {
    result.last_attempt = std::max(result.last_attempt, listing.last_draft);
    for (const ListedCheckpoint& one : listing.found) steps.emplace(one.step, &one);
  }
  for (auto at = steps.rbegin(); at != steps.rend(); ++at) {
    const auto& [step, listed] = *at;
    Result<Manifest> manifest = parse_manifest(listed->manifest);
    if (manifest.ok()) result.last_attempt = std::max(result.last_attempt, manifest->attempt);
    if (rejected.count(step) > 0) continue;
    std::string why;
    Candidate candidate;
    candidate.step = step;
    if (listed->manifest.empty()) {
      why = "manifest.json is missing or cannot be read";
    } else if (!manifest.ok()) {
      why = "manifest.json: " + manifest.error().text;
    } else if (manifest->step != step) {
      why = "manifest.json is of step " + std::to_string(manifest->step);
    } else if (manifest->size != size && !manifest->replicated) {
      why = "it was saved by " + std::to_string(manifest->size) +
            " ranks whose states differ, so it cannot serve " + std::to_string(size);
    } else {
      candidate.manifest = *manifest;
      why = kind == FolderKind::shared
                ? judge_shared(*listed, placement, size, candidate)
                : judge_separate(listings, hosts, placement, size, listed->manifest, candidate);
    }
    if (why.empty()) {
      result.usable.push_back(std::move(candidate));
    } else {
      result.skipped.push_back(skip(step, why));
    }
  }
  return result;
}

namespace {

// Why one listing's host cannot go on from it; empty if it can.
std::string lack_of(const ListedForeign& wanted, const CheckpointsListed& listing) {
  for (const ListedForeign& one : listing.foreign) {
    if (one.path == wanted.path) return one.missing;
  }
  return "it is not there";
}

}  // namespace

std::optional<ListedForeign> choose_foreign(const std::map<uint32_t, CheckpointsListed>& listings,
                                            const std::vector<Host>& hosts,
                                            std::vector<std::string>& skipped) {
  std::map<std::pair<uint64_t, std::string>, const ListedForeign*> all;
  for (const auto& [host, listing] : listings) {
    for (const ListedForeign& one : listing.foreign) all.try_emplace({one.step, one.path}, &one);
  }
  for (auto at = all.rbegin(); at != all.rend(); ++at) {
    std::string why;
    for (const auto& [host, listing] : listings) {
      const std::string lack = lack_of(*at->second, listing);
      if (!lack.empty() && why.empty()) why = "on " + hosts[host].name + " " + lack;
    }
    if (why.empty()) return *at->second;
    skipped.push_back("the " + at->second->layout + " checkpoint " + at->second->path +
                      " is not complete: " + why);
  }
  return std::nullopt;
}

Candidate committed_candidate(const Manifest& manifest, const Placement& placement) {
  return {manifest.step, manifest, spread(placement, manifest.size, manifest.shards)};
}

bool serves(const KeptStep& kept, const Placement& placement) {
  std::vector<Shard> held;
  for (const Shard& shard : kept.shards) {
    if (!shard.digest.empty()) held.push_back(shard);
  }
  const bool any_serves = serves_any_rank(held);
  return std::all_of(placement.begin(), placement.end(), [&](const HostPlaces& host) {
    const auto has_its_own = [&](const Place& place) {
      return place.rank < kept.shards.size() && !kept.shards[place.rank].digest.empty() &&
             kept.holders[place.rank] == host.host;
    };
    if (std::all_of(host.places.begin(), host.places.end(), has_its_own)) return true;
    return any_serves && std::any_of(held.begin(), held.end(), [&](const Shard& shard) {
             return kept.holders[shard.rank] == host.host;
           });
  });
}

void forget_older(KeptSteps& kept, uint32_t rank) {
  constexpr size_t kHeld = 2;
  size_t newer = 0;
  for (auto at = kept.rbegin(); at != kept.rend(); ++at) {
    Shard& shard = at->second.shards[rank];
    if (!shard.digest.empty() && ++newer > kHeld) shard = Shard{};
  }
  std::erase_if(kept, [](const auto& one) {
    const std::vector<Shard>& shards = one.second.shards;
    return std::all_of(shards.begin(), shards.end(),
                       [](const Shard& shard) { return shard.digest.empty(); });
  });
}

void forget_host(KeptSteps& kept, uint32_t host) {
  for (auto& [step, one] : kept) {
    for (size_t rank = 0; rank < one.shards.size(); ++rank) {
      if (one.holders[rank] == host) one.shards[rank] = Shard{};
    }
  }
}

std::vector<KeptState> held_by(const KeptSteps::value_type& kept, uint32_t host) {
  std::vector<KeptState> held;
  for (size_t rank = 0; rank < kept.second.shards.size(); ++rank) {
    const Shard& shard = kept.second.shards[rank];
    if (shard.digest.empty() || kept.second.holders[rank] != host) continue;
    held.push_back({kept.first.second, kept.first.first, shard});
  }
  return held;
}

std::vector<uint64_t> steps_to_prune(const std::set<uint64_t>& known,
                                     const std::set<uint64_t>& verified, uint32_t keep) {
  const size_t wanted = std::max<uint32_t>(keep, 2);
  if (verified.size() < wanted) return {};
  const uint64_t oldest_kept = *std::next(verified.rbegin(), static_cast<long>(wanted) - 1);
  std::vector<uint64_t> prune;
  for (const uint64_t step : known) {
    if (step < oldest_kept) prune.push_back(step);
  }
  return prune;
}

std::string lock_refusal(const std::string& dir, const LockRecord& holder) {
  if (holder.job.empty()) {
    return dir + " is in use: " + dir + "/.hvdlaunch.lock is another job's, but does not say whose";
  }
  return dir + " is in use by job " + holder.job + " (attempt " + std::to_string(holder.attempt) +
         " on " + holder.host + ", started on " + holder.launcher + ") since " + holder.since;
}

std::string compare_states(const std::vector<std::string>& digests) {
  std::map<std::string, size_t> votes;
  for (const std::string& digest : digests) ++votes[digest];
  if (votes.size() <= 1) return "";
  const auto most = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::string ranks;
  for (size_t rank = 0; rank < digests.size(); ++rank) {
    if (digests[rank] == most->first) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return "the state loaded by rank " + ranks + " differs from the other ranks'";
}

}  // namespace hvd
