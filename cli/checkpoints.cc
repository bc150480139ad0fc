#include "cli/checkpoints.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "base/checkpoint_format.h"
#include "base/exit_codes.h"
#include "base/fd.h"
#include "base/time.h"
#include "cli/complete.h"
#include "launcher/host_spec.h"
#include "launcher/job_file.h"
#include "supervisor/agent/checkpoint_tasks.h"
#include "supervisor/agent/directory_lock.h"
#include "supervisor/agent/facts.h"
#include "supervisor/checkpoints.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongestLockFile = 4096;
constexpr Duration kLookAtLock = 200ms;

// One of our checkpoints, judged.
struct Seen {
  uint64_t step = 0, bytes = 0;
  std::optional<Manifest> manifest;
  uint32_t here = 0;    // shards
  std::string why_not;  // empty: whole, as far as was looked
};

struct Overview {
  std::vector<Seen> ours;  // newest first
  std::vector<ListedForeign> foreign;
  std::optional<LockRecord> lock;
  uint32_t last_draft = 0;
  std::string resume;  // path of what would be resumed; empty: nothing
  uint64_t resume_step = 0;
};

std::string path_of(const CheckpointsCommand& command, uint64_t step) {
  return command.dir + "/" + step_folder(step);
}

// The defect of a shard, by its length only or by all of it.
std::string defect_of(const CheckpointsCommand& command, uint64_t step, const Shard& shard) {
  if (command.verify) {
    const auto verified = perform(VerifyCheckpoint{0, command.dir, step, {shard.rank}});
    return verified.defects.empty() ? "" : verified.defects.front().text;
  }
  const std::string path = path_of(command, step) + "/" + shard_file(shard.rank);
  struct stat st;
  if (lstat(path.c_str(), &st) != 0 || static_cast<uint64_t>(st.st_size) == shard.length) return "";
  return path + " is damaged: it holds " + std::to_string(st.st_size) +
         " bytes where the manifest says " + std::to_string(shard.length);
}

Seen judge(const CheckpointsCommand& command, const ListedCheckpoint& listed) {
  Seen seen;
  seen.step = listed.step;
  Result<Manifest> manifest = parse_manifest(listed.manifest);
  if (listed.manifest.empty()) {
    seen.why_not = "manifest.json is missing or cannot be read";
  } else if (!manifest) {
    seen.why_not = "manifest.json: " + manifest.error().text;
  } else if (manifest->step != listed.step) {
    seen.why_not = "manifest.json is of step " + std::to_string(manifest->step);
  }
  if (!seen.why_not.empty()) return seen;
  const std::set<uint32_t> present(listed.shards.begin(), listed.shards.end());
  std::string missing;
  for (const Shard& shard : manifest->shards) {
    seen.bytes += shard.length;
    if (present.count(shard.rank) == 0) {
      if (missing.empty()) missing = shard_file(shard.rank) + " is missing";
      continue;
    }
    ++seen.here;
    const std::string defect = defect_of(command, listed.step, shard);
    if (!defect.empty() && seen.why_not.empty()) seen.why_not = defect;
  }
  // Of state that is the same everywhere, any shard serves.
  const bool enough = manifest->replicated && seen.here > 0;
  if (seen.why_not.empty() && !enough) seen.why_not = missing;
  seen.manifest = std::move(*manifest);
  return seen;
}

Result<Overview> look(const CheckpointsCommand& command) {
  if (access(command.dir.c_str(), F_OK) != 0) {
    return errno_error("cannot open the checkpoint folder " + command.dir, errno);
  }
  const CheckpointsListed listed = list_checkpoints(command.dir);
  if (!listed.error.empty()) return Error{listed.error};
  Overview overview;
  overview.foreign = listed.foreign;
  overview.last_draft = listed.last_draft;
  for (const ListedCheckpoint& one : listed.found) overview.ours.push_back(judge(command, one));
  const auto lock = read_file(command.dir + "/.hvdlaunch.lock", kLongestLockFile);
  if (lock) overview.lock = parse_lock(*lock);
  for (const Seen& seen : overview.ours) {
    if (!seen.why_not.empty()) continue;
    overview.resume = path_of(command, seen.step);
    overview.resume_step = seen.step;
    return overview;
  }
  for (const ListedForeign& one : overview.foreign) {
    if (!one.missing.empty()) continue;
    overview.resume = command.dir + "/" + one.path;
    overview.resume_step = one.step;
    break;
  }
  return overview;
}

std::string size_text(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double amount = static_cast<double>(bytes);
  size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < std::size(kUnits); ++unit) amount /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", amount, kUnits[unit]);
  return text;
}

std::string row(const std::string& step, const std::string& ranks, const std::string& size,
                const std::string& state) {
  char head[64];
  std::snprintf(head, sizeof head, "%-12s %-7s %-11s ", step.c_str(), ranks.c_str(), size.c_str());
  return head + state + "\n";
}

std::string state_text(const CheckpointsCommand& command, const Seen& seen) {
  if (!seen.why_not.empty()) return "not whole: " + seen.why_not;
  std::string text = command.verify ? "whole" : "whole by its lengths";
  if (seen.here < seen.manifest->size) {
    text += ", " + std::to_string(seen.here) + " of " + std::to_string(seen.manifest->size) +
            " shards are here";
  }
  return text;
}

std::string table(const CheckpointsCommand& command, const Overview& overview) {
  std::string text;
  if (!overview.ours.empty()) text += row("step", "ranks", "size", "state");
  for (const Seen& seen : overview.ours) {
    text +=
        row(std::to_string(seen.step), seen.manifest ? std::to_string(seen.manifest->size) : "?",
            seen.manifest ? size_text(seen.bytes) : "?", state_text(command, seen));
  }
  for (const ListedForeign& one : overview.foreign) {
    text += row(std::to_string(one.step), "-", "-",
                one.layout + " " + one.path + ": " +
                    (one.missing.empty() ? "complete" : "not complete: " + one.missing));
  }
  if (overview.lock) text += lock_refusal(command.dir, *overview.lock) + "\n";
  if (overview.resume.empty()) return text + "nothing would be resumed\n";
  return text + "resume would go on from step " + std::to_string(overview.resume_step) + ", " +
         overview.resume + "\n";
}

std::string json_text(const CheckpointsCommand& command, const Overview& overview) {
  Json ours = Json::array(), foreign = Json::array(), resume, lock;
  for (const Seen& seen : overview.ours) {
    Json one = {{"step", seen.step},
                {"path", path_of(command, seen.step)},
                {"whole", seen.why_not.empty()},
                {"why_not", seen.why_not}};
    if (seen.manifest) {
      one.update({{"job", seen.manifest->job},
                  {"attempt", seen.manifest->attempt},
                  {"ranks", seen.manifest->size},
                  {"shards_here", seen.here},
                  {"bytes", seen.bytes},
                  {"replicated", seen.manifest->replicated}});
    }
    ours.push_back(std::move(one));
  }
  for (const ListedForeign& one : overview.foreign) {
    foreign.push_back({{"step", one.step},
                       {"path", command.dir + "/" + one.path},
                       {"layout", one.layout},
                       {"complete", one.missing.empty()},
                       {"why_not", one.missing}});
  }
  if (!overview.resume.empty()) {
    resume = {{"step", overview.resume_step}, {"path", overview.resume}};
  }
  if (overview.lock) {
    lock = {{"job", overview.lock->job},
            {"host", overview.lock->host},
            {"since", overview.lock->since}};
  }
  const Json all = {{"dir", command.dir}, {"verified", command.verify}, {"checkpoints", ours},
                    {"foreign", foreign}, {"resume", resume},           {"lock", lock}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// How many to keep: as the job was told.
uint32_t wanted(const std::string& dir) {
  const std::string path = dir + "/job.toml";
  const auto text = read_own_file(path, kLongestJobFile);
  const auto job = text ? parse_job_file(*text, path) : Result<Job>(Error{});
  return job ? job->checkpoint_keep : Job().checkpoint_keep;
}

// Empty, or why the folder is not ours alone.
std::string take_lock(const CheckpointsCommand& command, DirectoryLock& lock) {
  TakeLock task;
  task.dir = command.dir;
  task.record.job = "`hvdlaunch checkpoints --prune`, process " + std::to_string(getpid());
  task.record.host = task.record.launcher = own_hostname();
  task.record.lease_ns = static_cast<uint64_t>(Duration(2s).count());
  const Time begun = now();
  std::optional<uint64_t> touched;
  while (true) {
    const LockTaken answer = lock.perform(task);
    if (answer.taken) return "";
    if (!answer.error.empty()) return answer.error;
    if (answer.alive || (touched && *touched != answer.touched_ns)) {
      return lock_refusal(command.dir, answer.holder);
    }
    touched = answer.touched_ns;
    if (now() - begun > bounded(answer.holder.lease_ns)) task.stale_ns = *touched;
    std::this_thread::sleep_for(kLookAtLock);
  }
}

// Removes what is old and unfinished; a sentence for each.
std::string prune(const CheckpointsCommand& command, const Overview& overview, std::string& error) {
  const uint32_t keep = wanted(command.dir);
  std::set<uint64_t> known, verified;
  CheckpointsCommand whole = command;
  whole.verify = true;
  for (const Seen& seen : overview.ours) {
    if (seen.manifest) known.insert(seen.step);
    if (!seen.why_not.empty() || verified.size() >= std::max<uint32_t>(keep, 2)) continue;
    const auto& shards = seen.manifest->shards;
    const bool good = std::all_of(shards.begin(), shards.end(), [&](const Shard& shard) {
      return command.verify || defect_of(whole, seen.step, shard).empty();
    });
    if (good) verified.insert(seen.step);
  }
  const std::vector<uint64_t> steps = steps_to_prune(known, verified, keep);
  error = perform(PruneCheckpoints{0, command.dir, overview.last_draft + 1, steps}).error;
  std::string text;
  for (const uint64_t step : steps) {
    if (access(path_of(command, step).c_str(), F_OK) == 0) continue;
    text += "removed " + path_of(command, step) + "\n";
  }
  return text;
}

}  // namespace

Result<CheckpointsCommand> parse_checkpoints(const std::vector<std::string>& words,
                                             const std::string& directory) {
  CheckpointsCommand command;
  for (const std::string& word : words) {
    if (word == "--verify") {
      command.verify = true;
    } else if (word == "--prune") {
      command.prune = true;
    } else if (word == "--json") {
      command.json = true;
    } else if (word.starts_with("-") && word.size() > 1) {
      return Error{"unknown option " + in_quotes(word) +
                   ": expected hvdlaunch checkpoints CKPT_DIR [--verify] [--prune] [--json]"};
    } else if (!command.dir.empty() || word.empty()) {
      return Error{"unexpected word " + in_quotes(word) + ": expected one checkpoint folder"};
    } else if (word.substr(0, word.find('/')).find(':') != std::string::npos) {
      return Error{in_quotes(word) + ": a folder on another host is not in this version"};
    } else {
      command.dir = absolute_path(word, directory);
    }
  }
  if (command.dir.empty()) {
    return Error{"no checkpoint folder is named: expected hvdlaunch checkpoints CKPT_DIR"};
  }
  return command;
}

CheckpointsShown show_checkpoints(const CheckpointsCommand& command) {
  CheckpointsShown shown;
  DirectoryLock lock(read_facts().boot_id);
  if (command.prune && access(command.dir.c_str(), F_OK) == 0) {
    shown.error = take_lock(command, lock);
    if (!shown.error.empty()) return {kExitUsage, "", shown.error};
  }
  Result<Overview> overview = look(command);
  if (!overview) return {kExitUsage, "", overview.error().text};
  if (command.prune) {
    const std::string removed = prune(command, *overview, shown.error);
    lock.release();
    if (!shown.error.empty()) shown.code = 1;
    if (!command.json) shown.text = removed;
    overview = look(command);
    if (!overview) return {kExitUsage, shown.text, overview.error().text};
  }
  shown.text += command.json ? json_text(command, *overview) : table(command, *overview);
  const bool damage = std::any_of(overview->ours.begin(), overview->ours.end(),
                                  [](const Seen& seen) { return !seen.why_not.empty(); });
  if (command.verify && damage) shown.code = 1;
  if (overview->resume.empty()) shown.code = kExitNothingToResume;
  return shown;
}

}  // namespace hvd
