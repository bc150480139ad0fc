#include "comm/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fd.h"

namespace hvd {

namespace {

std::string rank_name(const CheckpointPlace& place) {
  return "rank " + std::to_string(place.rank);
}

// Writes this rank's shard into the draft folder, all of it on disk.
Result<Shard> write_draft(const CheckpointPlace& place, const std::string& draft, uint64_t step,
                          const std::string& note, const std::vector<NamedArray>& arrays) {
  Status made = make_lasting_folders(place.dir, 0755);
  // The draft's own name comes to the disk with the commit.
  if (made) made = make_folders(draft, 0755);
  if (!made) return made.error();
  const ShardIdentity identity{place.job, place.attempt, step, place.rank, place.size};
  Result<Shard> shard = write_shard(draft + "/" + shard_file(place.rank), identity, note, arrays);
  // Alone, the folder is synced with the manifest in it.
  if (!shard || place.agent == nullptr) return shard;
  const Status synced = sync_folder(draft);
  if (!synced) return synced.error();
  return shard;
}

// Puts the complete draft in the place of `target`, which may be there already.
Status commit_folder(const std::string& draft, const std::string& target) {
  if (renameat2(AT_FDCWD, draft.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0) {
    return Ok{};
  }
  if (errno == EINVAL && access(target.c_str(), F_OK) != 0) {
    // A file system without that flag; nothing is there that a plain rename would replace.
    if (rename(draft.c_str(), target.c_str()) == 0) return Ok{};
  }
  if (errno == EEXIST &&
      renameat2(AT_FDCWD, draft.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    return Ok{};
  }
  return errno_error("cannot commit " + target, errno);
}

// Removes what an exchange left in the draft's place: files that are ours by name, and the folder.
void remove_draft(const std::string& draft) {
  unlink((draft + "/" + shard_file(0)).c_str());
  unlink((draft + "/manifest.json").c_str());
  rmdir(draft.c_str());
}

Status commit_alone(const CheckpointPlace& place, const std::string& draft, uint64_t step,
                    const std::string& note, const Shard& shard) {
  Manifest manifest;
  manifest.job = place.job;
  manifest.attempt = place.attempt;
  manifest.step = step;
  manifest.size = 1;
  manifest.note = note;
  manifest.shards = {shard};
  manifest.replicated = serves_any_rank(manifest.shards);
  Status status = replace_file(draft + "/manifest.json", manifest_text(manifest), 0644);
  if (status) status = commit_folder(draft, place.dir + "/" + step_folder(step));
  if (status) status = sync_folder(place.dir);
  if (status) remove_draft(draft);
  return status;
}

Outcome await_commit(const CheckpointPlace& place, uint64_t step) {
  Patience patience(place.limits, place.rank, "the save of step " + std::to_string(step));
  SaveResult result;
  const Outcome told = place.agent->await(
      result, [step](const SaveResult& r) { return r.step == step; }, patience,
      "the launcher to commit");
  if (!told) return told;
  if (result.error.empty()) return {};
  return {HVD_CHECKPOINT_FAILED,
          "step " + std::to_string(step) + " was not saved: " + result.error};
}

}  // namespace

ShardSaved write_part(const CheckpointPlace& place, uint64_t step, const std::string& note,
                      const std::vector<NamedArray>& arrays) {
  ShardSaved part;
  part.attempt = place.attempt;
  part.step = step;
  part.note = note;
  part.shard.rank = place.rank;
  if (place.dir.empty()) {
    part.error =
        "there is no checkpoint directory: HVD_CHECKPOINT_DIR is not set (hvdlaunch "
        "--checkpoint-dir)";
    return part;
  }
  const std::string draft = place.dir + "/" + draft_folder(step, place.attempt);
  const Result<Shard> shard = write_draft(place, draft, step, note, arrays);
  Status status = shard ? Status(Ok{}) : Status(shard.error());
  if (shard) part.shard = *shard;
  if (shard && place.agent == nullptr) status = commit_alone(place, draft, step, note, *shard);
  if (!status) part.error = status.error().text;
  return part;
}

Outcome await_save(const CheckpointPlace& place, const ShardSaved& part) {
  const bool written = part.error.empty();
  if (place.agent == nullptr) {
    return written ? Outcome() : Outcome(HVD_CHECKPOINT_FAILED, part.error);
  }
  const Outcome committed = await_commit(place, part.step);
  // The launcher refuses a save that lacks a shard; what this rank knows is the better reason.
  if (!written && (committed || committed.code() == HVD_CHECKPOINT_FAILED)) {
    return {HVD_CHECKPOINT_FAILED, rank_name(place) + " could not save step " +
                                       std::to_string(part.step) + ": " + part.error};
  }
  return committed;
}

Outcome save_checkpoint(const CheckpointPlace& place, uint64_t step, const std::string& note,
                        const std::vector<NamedArray>& arrays) {
  const ShardSaved part = write_part(place, step, note, arrays);
  if (place.dir.empty()) return {HVD_CHECKPOINT_FAILED, part.error};
  if (place.agent != nullptr) {
    const Outcome sent = place.agent->send(part);
    if (!sent) return sent;
  }
  return await_save(place, part);
}

namespace {

struct ShardChoice {
  std::string path;
  ExpectedShard expected;
};

bool exists(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

// The shard that serves this rank: its own at the same size, else any one that is there if all are
// the same; ranks begin at different ones, to spread the load.
Result<ShardChoice> choose_shard(const CheckpointPlace& place, const Manifest& manifest) {
  const auto choice = [&](const Shard& shard) {
    return ShardChoice{place.resume_from + "/" + shard_file(shard.rank),
                       expected_shard(manifest, shard)};
  };
  if (manifest.size == place.size) {
    const Shard* own = shard_of(manifest, place.rank);
    if (own != nullptr && (exists(choice(*own).path) || !manifest.replicated)) return choice(*own);
  }
  if (!manifest.replicated) {
    return Error{place.resume_from + " was saved by " + std::to_string(manifest.size) +
                 " ranks whose states differ, so that " + std::to_string(place.size) +
                 " ranks cannot go on from it"};
  }
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    const Shard& shard = manifest.shards[(place.rank + i) % manifest.shards.size()];
    if (exists(choice(shard).path)) return choice(shard);
  }
  return Error{place.resume_from + " has no shard at all"};
}

Status check_targets(const std::string& path, const LoadedShard& shard,
                     const std::vector<ArrayTarget>& targets,
                     std::vector<const LoadedArray*>& sources) {
  for (const ArrayTarget& target : targets) {
    const auto found =
        std::find_if(shard.arrays.begin(), shard.arrays.end(),
                     [&](const LoadedArray& array) { return array.name == target.name; });
    if (found == shard.arrays.end()) {
      return Error{path + " has no array '" + target.name + "'"};
    }
    if (found->dtype != target.dtype || found->bytes.size() != target.bytes) {
      return Error{path + " has the array '" + target.name + "' with " +
                   std::to_string(found->bytes.size()) + " bytes of " + found->dtype +
                   " where the program has " + std::to_string(target.bytes) + " bytes of " +
                   target.dtype};
    }
    sources.push_back(&*found);
  }
  return Ok{};
}

// A checkpoint read and checked, not yet given to the caller.
struct ReadCheckpoint {
  uint64_t step = 0;
  LoadedShard shard;
  std::vector<const LoadedArray*> sources;  // by target, into shard.arrays
};

// What is read must fit what the program has.
Status take_shard(const std::string& name, LoadedShard shard,
                  const std::vector<ArrayTarget>& targets, size_t note_limit,
                  ReadCheckpoint& read) {
  read.shard = std::move(shard);
  if (read.shard.note.size() > note_limit) {
    return Error{name + " has a note of " + std::to_string(read.shard.note.size()) +
                 " bytes, more than the program has room for"};
  }
  return check_targets(name, read.shard, targets, read.sources);
}

Status read_kept(const CheckpointPlace& place, const std::vector<ArrayTarget>& targets,
                 size_t note_limit, ReadCheckpoint& read) {
  const KeptState& kept = *place.kept;
  read.step = kept.step;
  const std::string name = "the state of step " + std::to_string(kept.step) + " in memory";
  const ExpectedShard expected{kept.shard,
                               {place.job, kept.attempt, kept.step, kept.shard.rank, place.size}};
  Result<LoadedShard> shard = read_shard(place.kept_memory, name, expected);
  if (!shard) return shard.error();
  return take_shard(name, std::move(*shard), targets, note_limit, read);
}

Status read_checkpoint(const CheckpointPlace& place, const std::vector<ArrayTarget>& targets,
                       size_t note_limit, ReadCheckpoint& read) {
  if (place.kept != nullptr) return read_kept(place, targets, note_limit, read);
  const std::string path = place.resume_from + "/manifest.json";
  const Result<std::string> text = read_file(path, kMaxManifest);
  if (!text) return text.error();
  const Result<Manifest> manifest = parse_manifest(*text);
  if (!manifest) return Error{path + ": " + manifest.error().text};
  read.step = manifest->step;
  const Result<ShardChoice> choice = choose_shard(place, *manifest);
  if (!choice) return choice.error();
  Result<LoadedShard> shard = read_shard(choice->path, &choice->expected);
  if (!shard) return shard.error();
  return take_shard(choice->path, std::move(*shard), targets, note_limit, read);
}

// Tells what was read, and hears whether all ranks read the same.
Outcome compare_with_others(const CheckpointPlace& place, const ReadCheckpoint& read,
                            const Status& status) {
  StateLoaded loaded;
  loaded.attempt = place.attempt;
  loaded.rank = place.rank;
  loaded.step = read.step;
  if (status) {
    loaded.state_digest = read.shard.state_digest;
  } else {
    loaded.error = status.error().text;
  }
  const Outcome sent = place.agent->send(loaded);
  if (!sent) return sent;
  Patience patience(place.limits, place.rank, "the load of step " + std::to_string(read.step));
  LoadResult result;
  const Outcome told = place.agent->await(
      result, [](const LoadResult&) { return true; }, patience, "all ranks to load the same state");
  if (!told) return told;
  if (result.error.empty()) return {};
  return {HVD_CHECKPOINT_FAILED, result.error};
}

}  // namespace

Outcome load_checkpoint(const CheckpointPlace& place, const std::vector<ArrayTarget>& targets,
                        size_t note_limit, LoadedCheckpoint& loaded) {
  if (place.resume_from.empty()) {
    return {HVD_NO_CHECKPOINT, "there is no checkpoint to go on from: HVD_RESUME_FROM is not set"};
  }
  ReadCheckpoint read;
  const Status status = read_checkpoint(place, targets, note_limit, read);
  Outcome compared;
  if (place.agent != nullptr) compared = compare_with_others(place, read, status);
  if (!status && (compared || compared.code() == HVD_CHECKPOINT_FAILED)) {
    return {HVD_CHECKPOINT_FAILED, status.error().text};
  }
  if (!compared) return compared;
  for (size_t i = 0; i < targets.size(); ++i) {
    const std::string_view bytes = read.sources[i]->bytes;
    if (!bytes.empty()) std::memcpy(targets[i].data, bytes.data(), bytes.size());
  }
  loaded.step = read.step;
  loaded.note = read.shard.note;
  return {};
}

}  // namespace hvd
