// Which checkpoint to go on from, and which to remove: the decisions, made on what agents list.
// Pure. Reading, verifying and removing are done by agents.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/checkpoint_format.h"
#include "base/message.h"
#include "supervisor/placement.h"

namespace hvd {

// Whether the hosts see one checkpoint folder or each its own.
enum class FolderKind { shared, separate };

// A committed step that could be resumed, and which host must verify which shards of it.
struct Candidate {
  uint64_t step = 0;
  Manifest manifest;
  std::map<uint32_t, std::vector<uint32_t>> shards_by_host;
};

struct Candidates {
  std::vector<Candidate> usable;     // newest first
  std::vector<std::string> skipped;  // a sentence for each step that is not whole
  uint32_t last_attempt = 0;         // highest attempt that ever saved here
};

// `listings` by host. With a shared folder the first host's listing is the folder's. With separate
// folders a step is usable only where every host of the placement has the same manifest and the
// shards that its own ranks will read. `rejected` steps are passed over without a word.
Candidates find_candidates(const std::map<uint32_t, CheckpointsListed>& listings, FolderKind kind,
                           const std::vector<Host>& hosts, const Placement& placement,
                           uint32_t size, const std::set<uint64_t>& rejected);

// The program's own checkpoint to go on from where there is none of ours: the newest that every
// listing has complete. Each newer one that is not is a sentence in `skipped`.
std::optional<ListedForeign> choose_foreign(const std::map<uint32_t, CheckpointsListed>& listings,
                                            const std::vector<Host>& hosts,
                                            std::vector<std::string>& skipped);

// What the ranks of the placement have just committed, each host to verify its own ranks' shards.
Candidate committed_candidate(const Manifest& manifest, const Placement& placement);

// A state that ranks keep in their agents' memory.
struct KeptStep {
  std::vector<Shard> shards;      // by rank, digest empty where none is held
  std::vector<uint32_t> holders;  // by rank: the host whose agent holds it
  std::set<uint32_t> told;        // ranks that said whether they have theirs
  std::string error;              // of the first that has not
};
using StepOfAttempt = std::pair<uint64_t, uint32_t>;  // the step, and whose it is
using KeptSteps = std::map<StepOfAttempt, KeptStep>;

// Whether the ranks of the placement can go on from it: each host holds all its ranks' shards or,
// of state that is the same on all ranks, any one.
bool serves(const KeptStep& kept, const Placement& placement);

// Of each rank an agent holds the newest two: others are gone, and steps of which nothing is left.
void forget_older(KeptSteps& kept, uint32_t rank);

// What a host that is lost took along.
void forget_host(KeptSteps& kept, uint32_t host);

// Those shards that one host holds.
std::vector<KeptState> held_by(const KeptSteps::value_type& kept, uint32_t host);

// Of the steps known, those to remove: all but the newest `keep` (at least two) of `verified`, and
// never one that has fewer than that many verified steps above it.
std::vector<uint64_t> steps_to_prune(const std::set<uint64_t>& known,
                                     const std::set<uint64_t>& verified, uint32_t keep);

// "DIR is in use by job J on h1 ...", of a lock that another job has.
std::string lock_refusal(const std::string& dir, const LockRecord& holder);

// Compares what the ranks loaded. Empty if all are the same; else a sentence that names the ranks
// that differ from the most common state. `digests` by rank.
std::string compare_states(const std::vector<std::string>& digests);

}  // namespace hvd
