#include "supervisor/agent/checkpoint_tasks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include "base/checkpoint_format.h"
#include "base/fd.h"
#include "base/stale.h"
#include "supervisor/agent/folder.h"
#include "supervisor/agent/foreign_layouts.h"

namespace hvd {

namespace {

constexpr const char* kManifestFile = "manifest.json";
// What a listing may carry of manifests, so that the answer fits into a frame with the rest.
constexpr size_t kMostListed = 12u << 20;
constexpr size_t kMostForeign = 1000;
// Of job.toml, so that the answer fits into a frame.
constexpr size_t kLongestJobText = 12u << 20;
// A folder on its way out, so that no half of it is ever taken for a checkpoint.
constexpr std::string_view kAside = ".old";
// A checkpoint that makes room for another of its step, where two folders cannot be exchanged. It
// comes back if the other did not come to stand in its place.
constexpr std::string_view kReplaced = ".replaced";

std::string aside_name(uint64_t step, std::string_view suffix = kAside) {
  return step_folder(step) + std::string(suffix);
}

// The step of a folder put aside under that suffix.
std::optional<uint64_t> parse_aside(std::string_view name, std::string_view suffix = kAside) {
  if (!name.ends_with(suffix)) return std::nullopt;
  return parse_step_folder(name.substr(0, name.size() - suffix.size()));
}

Result<Fd> open_checkpoints(const std::string& dir) {
  Fd folder = open_folder_at(AT_FDCWD, dir);
  if (!folder) return errno_error("cannot open the checkpoint folder " + dir, errno);
  return folder;
}

// A regular file of an open folder, never through a link; `where` is the folder's path.
Result<std::string> read_file_at(int folder, const std::string& name, const std::string& where) {
  const std::string path = where + "/" + name;
  const Fd fd = open_anew(
      [&] { return openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW); });
  if (!fd && errno == ELOOP) return Error{"cannot read " + path + ": it is a link"};
  if (!fd) return errno_error("cannot read " + path, errno);
  // By the descriptor, so that what was opened is what is read.
  Result<std::string> text = read_file("/proc/self/fd/" + std::to_string(fd.get()), kMaxManifest);
  if (!text) return Error{"cannot read " + path + ": it is not a file of a manifest's size"};
  return text;
}

Status sync_folder(int folder, const std::string& path) {
  if (fsync(folder) != 0) return errno_error("cannot sync " + path, errno);
  return Ok{};
}

Status write_manifest(int folder, const std::string& path, const std::string& text) {
  const std::string file = path + "/" + kManifestFile;
  // A new file each time: after a failed fsync the kernel takes what it lost for written.
  unlinkat(folder, kManifestFile, 0);
  const Fd fd(openat(folder, kManifestFile, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) return errno_error("cannot write " + file, errno);
  const Status written = write_all(fd.get(), text);
  if (!written) return Error{file + ": " + written.error().text};
  if (fsync(fd.get()) != 0) return errno_error("cannot sync " + file, errno);
  return sync_folder(folder, path);
}

std::string error_of(const Status& status) {
  return status ? "" : status.error().text;
}

ListedCheckpoint list_one(int checkpoints, const std::string& dir, uint64_t step) {
  ListedCheckpoint listed{step, "", {}};
  const std::string name = step_folder(step);
  const Fd folder = open_folder_at(checkpoints, name);
  if (!folder) return listed;
  const Result<std::string> manifest = read_file_at(folder.get(), kManifestFile, dir + "/" + name);
  if (manifest) listed.manifest = *manifest;
  const Result<std::vector<std::string>> files = list_folder(folder.get());
  if (!files) return listed;
  for (const std::string& file : *files) {
    const std::optional<uint32_t> rank = parse_shard_file(file);
    if (rank && is_regular_at(folder.get(), file)) listed.shards.push_back(*rank);
  }
  std::sort(listed.shards.begin(), listed.shards.end());
  return listed;
}

bool is_folder_at(int parent, const std::string& name) {
  struct stat st;
  return fstatat(parent, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

bool exists_at(int parent, const std::string& name) {
  return faccessat(parent, name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

// A nonce is one plain name: it must not lead out of the folder.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos;
}

// Gives replaced checkpoints their places back where nothing came to stand there.
void bring_back(const std::string& dir) {
  const Fd folder = open_folder_at(AT_FDCWD, dir);
  const Result<std::vector<std::string>> names =
      folder ? list_folder(folder.get()) : Result<std::vector<std::string>>(Error{});
  if (!names) return;
  for (const std::string& name : *names) {
    const std::optional<uint64_t> step = parse_aside(name, kReplaced);
    if (!step || !is_folder_at(folder.get(), name)) continue;
    const std::string final = step_folder(*step);
    if (exists_at(folder.get(), final)) continue;
    renameat(folder.get(), name.c_str(), folder.get(), final.c_str());
  }
}

Status put_nonce(const ProbeDirectory& task) {
  const Status made = make_lasting_folders(task.dir, 0777);
  if (!made) return made;
  const std::string path = task.dir + "/" + task.nonce;
  const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  // Synced, so that other hosts of a shared disk see it.
  if (!fd || fsync(fd.get()) != 0) return errno_error("cannot write " + path, errno);
  return Ok{};
}

}  // namespace

DirectoryProbed perform(const ProbeDirectory& task) {
  DirectoryProbed answer{task.request, false, ""};
  if (!is_plain_name(task.nonce)) {
    answer.error = "'" + task.nonce + "' is not the name of a file";
    return answer;
  }
  if (task.write) {
    answer.error = error_of(put_nonce(task));
    if (!answer.error.empty()) return answer;
  }
  const Fd folder = open_folder_at(AT_FDCWD, task.dir);
  if (!folder && errno == ENOENT) return answer;
  if (!folder) {
    answer.error = errno_error("cannot open the checkpoint folder " + task.dir, errno).text;
    return answer;
  }
  // Opened rather than looked up: a network disk then asks its server.
  answer.seen =
      Fd(openat(folder.get(), task.nonce.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK))
          .valid();
  if (task.remove && unlinkat(folder.get(), task.nonce.c_str(), 0) != 0 && errno != ENOENT) {
    answer.error = errno_error("cannot remove " + task.dir + "/" + task.nonce, errno).text;
  }
  return answer;
}

CheckpointsListed perform(const ListCheckpoints& task) {
  bring_back(task.dir);
  CheckpointsListed answer = list_checkpoints(task.dir);
  answer.request = task.request;
  return answer;
}

CheckpointsListed list_checkpoints(const std::string& dir) {
  CheckpointsListed answer;
  if (access(dir.c_str(), F_OK) != 0 && errno == ENOENT) return answer;
  const Result<Fd> folder = open_checkpoints(dir);
  const Result<std::vector<std::string>> names =
      folder ? list_folder(folder->get()) : Result<std::vector<std::string>>(folder.error());
  if (!names) {
    answer.error = names.error().text;
    return answer;
  }
  std::vector<uint64_t> steps;
  for (const std::string& name : *names) {
    const std::optional<uint64_t> step = parse_step_folder(name);
    if (step && is_folder_at(folder->get(), name)) steps.push_back(*step);
    const std::optional<Draft> draft = parse_draft_folder(name);
    if (draft) answer.last_draft = std::max(answer.last_draft, draft->attempt);
  }
  std::sort(steps.rbegin(), steps.rend());
  size_t bytes = 0;
  for (const uint64_t step : steps) {
    ListedCheckpoint listed = list_one(folder->get(), dir, step);
    bytes += 64 + listed.manifest.size() + 4 * listed.shards.size();
    if (bytes > kMostListed) break;
    answer.found.push_back(std::move(listed));
  }
  answer.foreign = find_foreign(list_for_foreign(folder->get()));
  if (answer.foreign.size() > kMostForeign) answer.foreign.resize(kMostForeign);
  return answer;
}

namespace {

// What is wrong with one shard, or nothing.
std::string find_defect(int folder, const std::string& where, const Manifest& manifest,
                        uint32_t rank) {
  const std::string file = shard_file(rank), path = where + "/" + file;
  const Shard* shard = shard_of(manifest, rank);
  if (shard == nullptr) return "the manifest of " + where + " does not list " + file;
  struct stat st;
  if (fstatat(folder, file.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) {
    return path + ": " + (errno == ENOENT ? "it is missing" : "it cannot be examined");
  }
  if (!S_ISREG(st.st_mode)) return path + ": it is not a regular file";
  return error_of(verify_shard(path, expected_shard(manifest, *shard)));
}

Result<Manifest> read_manifest(int folder, const std::string& where, uint64_t step) {
  const Result<std::string> text = read_file_at(folder, kManifestFile, where);
  if (!text) return text.error();
  Result<Manifest> manifest = parse_manifest(*text);
  if (!manifest) return Error{where + "/" + kManifestFile + ": " + manifest.error().text};
  if (manifest->step != step) {
    return Error{where + "/" + kManifestFile + ": it is of step " + std::to_string(manifest->step)};
  }
  return manifest;
}

}  // namespace

CheckpointVerified perform(const VerifyCheckpoint& task) {
  CheckpointVerified answer{task.request, task.step, {}, {}};
  const std::string where = task.dir + "/" + step_folder(task.step);
  const Result<Fd> checkpoints = open_checkpoints(task.dir);
  const Fd folder = checkpoints ? open_folder_at(checkpoints->get(), step_folder(task.step)) : Fd();
  const Result<Manifest> manifest =
      folder ? read_manifest(folder.get(), where, task.step)
             : Result<Manifest>(Error{where + ": it is missing, or no folder"});
  for (const uint32_t rank : task.shards) {
    const std::string defect =
        manifest ? find_defect(folder.get(), where, *manifest, rank) : manifest.error().text;
    if (defect.empty()) {
      answer.whole.push_back(rank);
    } else {
      answer.defects.push_back({rank, defect});
    }
  }
  return answer;
}

namespace {

// Puts the draft in the place of a checkpoint of its step, which is whole at every moment. Gives
// the name that the old one has then.
Result<std::string> replace_step(int parent, const std::string& dir, uint64_t step,
                                 const std::string& draft) {
  const std::string final = step_folder(step);
  if (renameat2(parent, draft.c_str(), parent, final.c_str(), RENAME_EXCHANGE) == 0) return draft;
  if (errno != EINVAL && errno != ENOSYS) {
    return errno_error("cannot exchange " + dir + "/" + draft + " with " + final, errno);
  }
  // A file system that cannot do so.
  const std::string replaced = aside_name(step, kReplaced);
  const Status removed = remove_tree(parent, replaced);
  if (!removed) return removed.error();
  if (renameat(parent, final.c_str(), parent, replaced.c_str()) != 0) {
    return errno_error("cannot put aside " + dir + "/" + final, errno);
  }
  if (renameat(parent, draft.c_str(), parent, final.c_str()) != 0) {
    const int number = errno;
    renameat(parent, replaced.c_str(), parent, final.c_str());
    return errno_error("cannot rename " + dir + "/" + draft + " to " + final, number);
  }
  return replaced;
}

// A launcher that took the job over cannot know that the one before had asked for it.
bool is_committed(int parent, const CommitCheckpoint& task) {
  const std::string where = task.dir + "/" + step_folder(task.step);
  const Fd folder = open_folder_at(parent, step_folder(task.step));
  const Result<Manifest> manifest =
      folder ? read_manifest(folder.get(), where, task.step) : Result<Manifest>(Error{where});
  return manifest && manifest_text(*manifest) == task.manifest;
}

Status commit(const CommitCheckpoint& task) {
  const Result<Fd> checkpoints = open_checkpoints(task.dir);
  if (!checkpoints) return checkpoints.error();
  const std::string draft = draft_folder(task.step, task.attempt), final = step_folder(task.step);
  const std::string path = task.dir + "/" + draft;
  const Fd folder = open_folder_at(checkpoints->get(), draft);
  const int number = errno;
  if (!folder && number == ENOENT && is_committed(checkpoints->get(), task)) {
    return sync_folder(checkpoints->get(), task.dir);
  }
  if (!folder) return errno_error("cannot commit " + path, number);
  const Status written = write_manifest(folder.get(), path, task.manifest);
  if (!written) {
    // What a failed disk holds of it is not to be trusted by another try.
    static_cast<void>(remove_tree(checkpoints->get(), draft));
    return written;
  }
  const int parent = checkpoints->get();
  if (!exists_at(parent, final)) {
    if (renameat(parent, draft.c_str(), parent, final.c_str()) != 0) {
      return errno_error("cannot rename " + path + " to " + final, errno);
    }
    return sync_folder(parent, task.dir);
  }
  const Result<std::string> old = replace_step(parent, task.dir, task.step, draft);
  if (!old) return old.error();
  const Status synced = sync_folder(parent, task.dir);
  // The checkpoint is safe by now: what is left of the old one goes with the next attempt at the
  // latest.
  if (synced) static_cast<void>(remove_tree(parent, *old));
  return synced;
}

// Removes a committed step with a manifest of ours, and nothing else of that name.
Status prune_step(int checkpoints, const std::string& dir, uint64_t step) {
  const std::string name = step_folder(step), aside = aside_name(step);
  if (!exists_at(checkpoints, name)) return Ok{};
  const Fd folder = open_folder_at(checkpoints, name);
  if (!folder) return Error{"cannot prune " + dir + "/" + name + ": it is not a folder"};
  const Result<Manifest> manifest = read_manifest(folder.get(), dir + "/" + name, step);
  if (!manifest)
    return Error{"will not prune a folder that is not known: " + manifest.error().text};
  const Status removed = remove_tree(checkpoints, aside);
  if (!removed) return removed;
  if (renameat(checkpoints, name.c_str(), checkpoints, aside.c_str()) != 0 && errno != ENOENT) {
    return errno_error("cannot put aside " + dir + "/" + name, errno);
  }
  return Ok{};
}

Status prune_leftovers(int checkpoints, uint32_t attempt) {
  const Result<std::vector<std::string>> names = list_folder(checkpoints);
  if (!names) return names.error();
  Status first = Ok{};
  for (const std::string& name : *names) {
    const std::optional<Draft> draft = parse_draft_folder(name);
    const bool ours =
        parse_aside(name) || parse_aside(name, kReplaced) || (draft && draft->attempt < attempt);
    if (!ours || !is_folder_at(checkpoints, name)) continue;
    const Status removed = remove_tree(checkpoints, name);
    if (first && !removed) first = removed;
  }
  return first;
}

Status prune(const PruneCheckpoints& task) {
  const Result<Fd> checkpoints = open_checkpoints(task.dir);
  if (!checkpoints) return checkpoints.error();
  Status first = Ok{};
  for (const uint64_t step : task.steps) {
    const Status pruned = prune_step(checkpoints->get(), task.dir, step);
    if (first && !pruned) first = pruned;
  }
  const Status left = prune_leftovers(checkpoints->get(), task.attempt);
  return first ? left : first;
}

Status write_job_file(const WriteJobFile& task) {
  const Status made = make_lasting_folders(task.dir, 0777);
  if (!made) return made;
  return replace_file(task.dir + "/job.toml", task.text, 0600);
}

}  // namespace

Performed perform(const CommitCheckpoint& task) {
  return {task.request, error_of(commit(task))};
}

Performed perform(const PruneCheckpoints& task) {
  return {task.request, error_of(prune(task))};
}

Performed perform(const WriteJobFile& task) {
  return {task.request, error_of(write_job_file(task))};
}

JobFileRead perform(const ReadJobFile& task) {
  const std::string path = task.dir + "/job.toml";
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return {task.request, "", ""};
  const Result<std::string> text = read_own_file(path, kLongestJobText);
  return text ? JobFileRead{task.request, *text, ""}
              : JobFileRead{task.request, "", text.error().text};
}

}  // namespace hvd
