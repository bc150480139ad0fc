// Checkpoint work, through the real agent on a real folder.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "base/checkpoint_format.h"
#include "tests/agent/agent_process.h"

using namespace hvd;
using namespace hvd::test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A folder with checkpoints, and an agent that works on it.
class Checkpoints {
 public:
  Checkpoints() { agent.greet(); }

  // Writes the shards of two ranks as a draft and gives the manifest that fits them.
  Manifest write_draft(uint64_t step, uint32_t attempt, double value = 1) {
    const std::string draft = folder / draft_folder(step, attempt);
    REQUIRE(make_folders(draft, 0777).ok());
    Manifest manifest;
    manifest.job = agent.job();
    manifest.attempt = attempt;
    manifest.step = step;
    manifest.size = 2;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      NamedArray array;
      array.name = "weights";
      array.dtype = "F64";
      array.data = &value;
      array.bytes = sizeof value;
      const auto shard = write_shard(draft + "/" + shard_file(rank),
                                     {agent.job(), attempt, step, rank, 2}, "", {array});
      REQUIRE(shard.ok());
      manifest.shards.push_back(*shard);
    }
    return manifest;
  }

  std::string commit(const Manifest& manifest) {
    agent.send(CommitCheckpoint{++request, folder.path(), manifest.attempt, manifest.step,
                                manifest_text(manifest)});
    return performed();
  }
  std::string prune(uint32_t attempt, std::vector<uint64_t> steps) {
    agent.send(PruneCheckpoints{++request, folder.path(), attempt, std::move(steps)});
    return performed();
  }
  std::string performed() {
    return agent.expect<Performed>([&](const Performed& p) { return p.request == request; }).error;
  }
  CheckpointsListed list() {
    agent.send(ListCheckpoints{++request, folder.path()});
    return agent.expect<CheckpointsListed>();
  }
  CheckpointVerified verify(uint64_t step, std::vector<uint32_t> shards) {
    agent.send(VerifyCheckpoint{++request, folder.path(), step, std::move(shards)});
    return agent.expect<CheckpointVerified>();
  }
  std::string step(uint64_t step) const { return folder / step_folder(step); }

  AgentProcess agent;
  TestFolder folder;
  uint32_t request = 0;
};

void flip_bit(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat st;
  REQUIRE(fstat(fd.get(), &st) == 0);
  char byte;
  REQUIRE(pread(fd.get(), &byte, 1, st.st_size - 1) == 1);
  byte ^= 4;
  REQUIRE(pwrite(fd.get(), &byte, 1, st.st_size - 1) == 1);
}

}  // namespace

TEST_CASE("a committed checkpoint is listed and verifies") {
  Checkpoints c;
  const Manifest manifest = c.write_draft(100, 2);
  CHECK(c.list().found.empty());
  CHECK(c.list().last_draft == 2);
  CHECK(c.commit(manifest) == "");
  CHECK_FALSE(exists(c.folder / draft_folder(100, 2)));
  const auto listed = c.list();
  CHECK(listed.error.empty());
  REQUIRE(listed.found.size() == 1);
  CHECK(listed.found[0].step == 100);
  CHECK(listed.found[0].manifest == manifest_text(manifest));
  CHECK(listed.found[0].shards == std::vector<uint32_t>{0, 1});
  const auto verified = c.verify(100, {0, 1});
  CHECK(verified.step == 100);
  CHECK(verified.whole == std::vector<uint32_t>{0, 1});
  CHECK(verified.defects.empty());
}

TEST_CASE("newest comes first, compared as numbers") {
  Checkpoints c;
  for (const uint64_t step : {9u, 1000u, 200u}) REQUIRE(c.commit(c.write_draft(step, 1)) == "");
  const auto listed = c.list();
  REQUIRE(listed.found.size() == 3);
  CHECK(listed.found[0].step == 1000);
  CHECK(listed.found[1].step == 200);
  CHECK(listed.found[2].step == 9);
}

TEST_CASE("a folder that is not there holds no checkpoints, one that is no folder is an error") {
  Checkpoints c;
  c.agent.send(ListCheckpoints{1, c.folder / "none"});
  const auto none = c.agent.expect<CheckpointsListed>();
  CHECK(none.found.empty());
  CHECK(none.error.empty());
  REQUIRE(replace_file(c.folder / "file", "x", 0600).ok());
  c.agent.send(ListCheckpoints{2, c.folder / "file"});
  CHECK(has(c.agent.expect<CheckpointsListed>().error, "Not a directory"));
}

TEST_CASE("a flipped bit, a short file and a missing file are named") {
  Checkpoints c;
  REQUIRE(c.commit(c.write_draft(100, 1)) == "");
  const std::string shard = c.step(100) + "/" + shard_file(1);
  SUBCASE("flipped bit") {
    flip_bit(shard);
  }
  SUBCASE("short") {
    REQUIRE(truncate(shard.c_str(), 20) == 0);
  }
  SUBCASE("missing") {
    REQUIRE(unlink(shard.c_str()) == 0);
  }
  SUBCASE("a link to a whole file") {
    REQUIRE(rename(shard.c_str(), (c.folder / "whole").c_str()) == 0);
    REQUIRE(symlink((c.folder / "whole").c_str(), shard.c_str()) == 0);
    CHECK(c.list().found[0].shards == std::vector<uint32_t>{0});
  }
  const auto verified = c.verify(100, {0, 1});
  CHECK(verified.whole == std::vector<uint32_t>{0});
  REQUIRE(verified.defects.size() == 1);
  CHECK(verified.defects[0].rank == 1);
  CHECK_MESSAGE(has(verified.defects[0].text, shard), verified.defects[0].text);
}

TEST_CASE("a damaged manifest condemns every shard, by its name") {
  Checkpoints c;
  REQUIRE(c.commit(c.write_draft(100, 1)) == "");
  flip_bit(c.step(100) + "/manifest.json");
  const auto verified = c.verify(100, {0, 1});
  CHECK(verified.whole.empty());
  REQUIRE(verified.defects.size() == 2);
  CHECK_MESSAGE(has(verified.defects[0].text, c.step(100) + "/manifest.json"),
                verified.defects[0].text);
  const auto missing = c.verify(200, {0});
  REQUIRE(missing.defects.size() == 1);
  CHECK(has(missing.defects[0].text, c.step(200)));
}

namespace {

// Steps 100 of attempt 1 and 200 of attempt 2, of two ranks that each have state of their own.
struct TwoSteps : Checkpoints {
  TwoSteps() {
    REQUIRE(commit(write_own(100, 1)) == "");
    REQUIRE(commit(write_own(200, 2)) == "");
  }

  Manifest write_own(uint64_t at, uint32_t attempt) {
    Manifest manifest = write_draft(at, attempt);
    manifest.shards[1] =
        write_rank(folder / draft_folder(at, attempt), {agent.job(), attempt, at, 1, 2});
    return manifest;
  }
  // The state is the same everywhere: what a shard is tells it from others.
  Shard write_rank(const std::string& where, const ShardIdentity& identity) {
    const double value = 1;
    NamedArray array{"own", "F64", {}, &value, sizeof value, false};
    const auto shard = write_shard(where + "/" + shard_file(identity.rank), identity, "", {array});
    REQUIRE(shard.ok());
    return *shard;
  }
  std::string shard(uint64_t at, uint32_t rank) const { return step(at) + "/" + shard_file(rank); }
  std::string manifest() const { return step(200) + "/manifest.json"; }
};

void move(const std::string& from, const std::string& to) {
  REQUIRE(rename(from.c_str(), to.c_str()) == 0);
}

void copy(const std::string& from, const std::string& to) {
  REQUIRE(replace_file(to, *read_file(from, 1u << 20), 0600).ok());
}

void swap_files(const std::string& a, const std::string& b) {
  REQUIRE(renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0);
}

}  // namespace

TEST_CASE("n33: whatever stands in a shard's place is rejected by its name") {
  TwoSteps c;
  const std::string path = c.shard(200, 1);
  std::string why;
  SUBCASE("another rank's") {
    swap_files(path, c.shard(200, 0));
    why = "it is the shard of rank 0 of 2 at step 200, saved by attempt 2 of job";
  }
  SUBCASE("another rank's, twice") {
    copy(c.shard(200, 0), path);
    why = "it is the shard of rank 0 of 2 at step 200, saved by attempt 2 of job";
  }
  SUBCASE("another step's") {
    swap_files(path, c.shard(100, 1));
    why = "it is the shard of rank 1 of 2 at step 100, saved by attempt 1 of job";
  }
  SUBCASE("one of an earlier attempt at the same step") {
    c.write_rank(c.step(200), {c.agent.job(), 1, 200, 1, 2});
    why = "it is the shard of rank 1 of 2 at step 200, saved by attempt 1 of job";
  }
  SUBCASE("another job's") {
    c.write_rank(c.step(200), {"foreign", 2, 200, 1, 2});
    why = "it is the shard of rank 1 of 2 at step 200, saved by attempt 2 of job foreign";
  }
  SUBCASE("nothing") {
    REQUIRE(unlink(path.c_str()) == 0);
    why = "it is missing";
  }
  SUBCASE("an empty file") {
    REQUIRE(truncate(path.c_str(), 0) == 0);
    why = "it holds 0 bytes where the manifest says";
  }
  SUBCASE("a longer file") {
    REQUIRE(truncate(path.c_str(), 1 << 20) == 0);
    why = "it holds 1048576 bytes where the manifest says";
  }
  SUBCASE("a header that says it is huge") {
    const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(pwrite(fd.get(), "\xff\xff\xff\xff\xff\xff\xff\x7f", 8, 0) == 8);
    why = "its header is longer than the file";
  }
  SUBCASE("a folder") {
    REQUIRE(unlink(path.c_str()) == 0);
    REQUIRE(mkdir(path.c_str(), 0700) == 0);
    why = "it is not a regular file";
  }
  SUBCASE("a link to the whole file") {
    move(path, c.folder / "whole");
    REQUIRE(symlink((c.folder / "whole").c_str(), path.c_str()) == 0);
    why = "it is not a regular file";
  }
  SUBCASE("a link to itself") {
    REQUIRE(unlink(path.c_str()) == 0);
    REQUIRE(symlink(path.c_str(), path.c_str()) == 0);
    why = "it is not a regular file";
  }
  SUBCASE("a pipe") {
    REQUIRE(unlink(path.c_str()) == 0);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    why = "it is not a regular file";
  }
  const auto verified = c.verify(200, {1});
  CHECK(verified.whole.empty());
  REQUIRE(verified.defects.size() == 1);
  CHECK_MESSAGE(has(verified.defects[0].text, path), verified.defects[0].text);
  CHECK_MESSAGE(has(verified.defects[0].text, why), verified.defects[0].text);
}

TEST_CASE("n33: whatever stands in a manifest's place is rejected by its name") {
  TwoSteps c;
  const std::string path = c.manifest();
  std::string why;
  SUBCASE("another step's") {
    copy(c.step(100) + "/manifest.json", path);
    why = "it is of step 100";
  }
  SUBCASE("nothing") {
    REQUIRE(unlink(path.c_str()) == 0);
    why = "No such file";
  }
  SUBCASE("an empty file") {
    REQUIRE(truncate(path.c_str(), 0) == 0);
    why = "its end is missing";
  }
  SUBCASE("a huge file") {
    REQUIRE(truncate(path.c_str(), int64_t{1} << 40) == 0);
    why = "not a file of a manifest's size";
  }
  SUBCASE("a folder") {
    REQUIRE(unlink(path.c_str()) == 0);
    REQUIRE(mkdir(path.c_str(), 0700) == 0);
    why = "not a file of a manifest's size";
  }
  SUBCASE("a link to the whole file") {
    move(path, c.folder / "whole");
    REQUIRE(symlink((c.folder / "whole").c_str(), path.c_str()) == 0);
    why = "it is a link";
  }
  SUBCASE("a link to itself") {
    REQUIRE(unlink(path.c_str()) == 0);
    REQUIRE(symlink(path.c_str(), path.c_str()) == 0);
    why = "it is a link";
  }
  const auto verified = c.verify(200, {0, 1});
  CHECK(verified.whole.empty());
  REQUIRE(verified.defects.size() == 2);
  CHECK_MESSAGE(has(verified.defects[0].text, path), verified.defects[0].text);
  CHECK_MESSAGE(has(verified.defects[0].text, why), verified.defects[0].text);
}

TEST_CASE("links are not followed in place of step folders") {
  Checkpoints c;
  TestFolder elsewhere;
  REQUIRE(c.commit(c.write_draft(100, 1)) == "");
  REQUIRE(rename(c.step(100).c_str(), (elsewhere / "stolen").c_str()) == 0);
  REQUIRE(symlink((elsewhere / "stolen").c_str(), c.step(100).c_str()) == 0);
  CHECK(c.list().found.empty());
  CHECK(c.verify(100, {0}).whole.empty());
  CHECK(has(c.prune(9, {100}), "not a folder"));
  CHECK(exists(elsewhere / "stolen/manifest.json"));

  Manifest manifest = c.write_draft(300, 1);
  const std::string draft = c.folder / draft_folder(300, 1);
  REQUIRE(rename(draft.c_str(), (elsewhere / "draft").c_str()) == 0);
  REQUIRE(symlink((elsewhere / "draft").c_str(), draft.c_str()) == 0);
  CHECK(has(c.commit(manifest), draft));
  CHECK_FALSE(exists(elsewhere / "draft/manifest.json"));
}

TEST_CASE("a commit without its draft is refused, and so is one of an attempt that is over") {
  Checkpoints c;
  Manifest manifest = c.write_draft(100, 1);
  Manifest other = manifest;
  other.step = 101;
  CHECK(has(c.commit(other), draft_folder(101, 1)));
  c.agent.send(c.agent.shell("exec sleep 1000", 1, 2));
  c.agent.expect<WorkerStarted>();
  CHECK(has(c.commit(manifest), "attempt 2 has begun"));
  CHECK_FALSE(exists(c.step(100)));
}

TEST_CASE("a commit that was asked for twice is one, and a different one is refused") {
  Checkpoints c;
  Manifest manifest = c.write_draft(20, 1);
  CHECK(c.commit(manifest).empty());
  CHECK(c.commit(manifest).empty());
  manifest.note = "another";
  CHECK(has(c.commit(manifest), "cannot commit"));
}

TEST_CASE("a commit takes the place of a checkpoint that was rejected") {
  Checkpoints c;
  REQUIRE(c.commit(c.write_draft(100, 1, 1)) == "");
  flip_bit(c.step(100) + "/" + shard_file(0));
  CHECK(c.verify(100, {0}).defects.size() == 1);
  CHECK(c.commit(c.write_draft(100, 2, 2)) == "");
  CHECK(c.verify(100, {0, 1}).whole.size() == 2);
  CHECK_FALSE(exists(c.step(100) + ".old"));
  CHECK(c.list().found.size() == 1);
}

TEST_CASE("pruning removes what it was told to, old drafts and leftovers, and nothing else") {
  Checkpoints c;
  for (const uint64_t step : {100u, 200u, 300u}) REQUIRE(c.commit(c.write_draft(step, 1)) == "");
  c.write_draft(400, 2);
  c.write_draft(400, 3);
  REQUIRE(make_folders(c.step(50) + ".old", 0777).ok());
  REQUIRE(make_folders(c.step(150), 0777).ok());
  REQUIRE(replace_file(c.step(150) + "/precious", "x", 0600).ok());
  REQUIRE(make_folders(c.folder / "mine.old", 0777).ok());
  TestFolder elsewhere;
  REQUIRE(replace_file(elsewhere / "precious", "x", 0600).ok());
  REQUIRE(symlink(elsewhere.path().c_str(), (c.step(100) + "/link").c_str()) == 0);

  const std::string error = c.prune(3, {100, 150, 777});
  CHECK_MESSAGE(has(error, c.step(150)), error);
  CHECK_FALSE(exists(c.step(100)));
  CHECK_FALSE(exists(c.folder / draft_folder(400, 2)));
  CHECK_FALSE(exists(c.step(50) + ".old"));
  CHECK_FALSE(exists(c.step(100) + ".old"));
  for (const std::string& kept :
       {c.step(200), c.step(300), c.step(150) + "/precious", c.folder / draft_folder(400, 3),
        c.folder / "mine.old", elsewhere / "precious"}) {
    CAPTURE(kept);
    CHECK(exists(kept));
  }
}

TEST_CASE("a probe says who sees whose file") {
  Checkpoints c;
  const std::string dir = c.folder / "new/deep";
  const auto probe = [&](const std::string& nonce, bool write, bool remove) {
    c.agent.send(ProbeDirectory{++c.request, dir, nonce, write, remove});
    return c.agent.expect<DirectoryProbed>();
  };
  CHECK_FALSE(probe("nonce-1", false, false).seen);
  CHECK_FALSE(exists(dir));
  CHECK(probe("nonce-1", true, false).seen);
  CHECK(exists(dir + "/nonce-1"));
  CHECK(probe("nonce-1", false, false).seen);
  CHECK_FALSE(probe("nonce-2", false, false).seen);
  CHECK(probe("nonce-1", false, true).seen);
  CHECK_FALSE(exists(dir + "/nonce-1"));
  CHECK(has(probe("../nonce", true, false).error, "not the name of a file"));
  REQUIRE(replace_file(c.folder / "file", "x", 0600).ok());
  c.agent.send(ProbeDirectory{++c.request, c.folder / "file/below", "n", true, false});
  CHECK(has(c.agent.expect<DirectoryProbed>().error, c.folder / "file"));
}

TEST_CASE("the job file is private and replaced whole") {
  Checkpoints c;
  const std::string dir = c.folder / "ckpt";
  for (const char* text : {"one", "two"}) {
    c.agent.send(WriteJobFile{++c.request, dir, text});
    CHECK(c.performed() == "");
    CHECK(*read_file(dir + "/job.toml", 100) == text);
  }
  struct stat st;
  REQUIRE(stat((dir + "/job.toml").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0600);
}

namespace {

struct Lock {
  static constexpr uint64_t kLease = 1'000'000'000;
  std::string path() const { return folder / ".hvdlaunch.lock"; }
  LockTaken take(AgentProcess& agent, const std::string& job, uint64_t stale_ns = 0,
                 uint32_t attempt = 1) {
    const LockRecord record{job, attempt, "h1", "login1", kLease, "", ""};
    agent.send(TakeLock{++request, folder.path(), record, stale_ns});
    return agent.expect<LockTaken>([&](const LockTaken& m) { return m.request == request; });
  }
  TestFolder folder;
  uint32_t request = 0;
};

}  // namespace

TEST_CASE("n34: one of two jobs has a folder to itself, and the other is told whose it is") {
  Lock lock;
  AgentProcess first, second;
  first.greet();
  second.greet();
  CHECK(lock.take(first, "one").taken);
  const LockTaken refused = lock.take(second, "two");
  CHECK(refused.error.empty());
  CHECK_FALSE(refused.taken);
  CHECK(refused.alive);
  CHECK(refused.holder.job == "one");
  CHECK(refused.holder.host == "h1");
  CHECK(refused.holder.launcher == "login1");
  CHECK(has(refused.holder.since, "20"));
  // Not by waiting either: the kernel says that its holder lives.
  CHECK_FALSE(lock.take(second, "two", refused.touched_ns).taken);

  SUBCASE("until it ends") {
    first.send(Goodbye{});
    first.wait_end();
    CHECK_FALSE(exists(lock.path()));
    CHECK(lock.take(second, "two").taken);
  }
  SUBCASE("until it is killed, which is seen at once") {
    REQUIRE(kill(first.agent(), SIGKILL) == 0);
    first.wait_end();
    CHECK(exists(lock.path()));
    CHECK(lock.take(second, "two").taken);
    CHECK(lock.take(second, "two", 0, 2).taken);
    CHECK(has(*read_file(lock.path(), 1000), "job=two\nattempt=2\n"));
  }
  SUBCASE("and its next attempt takes the lock from whoever had it") {
    CHECK(lock.take(second, "one", 0, 2).taken);
    first.send(Goodbye{});
    first.wait_end();
    CHECK(exists(lock.path()));
  }
}

TEST_CASE("n34: the lock of another machine is dead when nobody touches it for its lease") {
  Lock lock;
  AgentProcess agent;
  agent.greet();
  REQUIRE(replace_file(lock.path(), "job=far\nlease_ns=1\nboot_id=another\n", 0644).ok());
  const LockTaken seen = lock.take(agent, "two");
  CHECK_FALSE(seen.taken);
  CHECK_FALSE(seen.alive);
  CHECK(seen.holder.job == "far");
  CHECK_FALSE(lock.take(agent, "two", seen.touched_ns + 1).taken);
  CHECK(lock.take(agent, "two", seen.touched_ns).taken);
}

TEST_CASE("n34: a held lock is touched all the time") {
  Lock lock;
  AgentProcess agent;
  agent.greet();
  REQUIRE(lock.take(agent, "one").taken);
  struct stat before, now;
  REQUIRE(stat(lock.path().c_str(), &before) == 0);
  const auto touched = [&] {
    REQUIRE(stat(lock.path().c_str(), &now) == 0);
    return now.st_mtim.tv_sec != before.st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != before.st_mtim.tv_nsec;
  };
  CHECK(wait_until(touched));
}

TEST_CASE("n34: a lock that is not a file, or says nothing, is nobody's to take") {
  Lock lock;
  AgentProcess agent;
  agent.greet();
  SUBCASE("a folder") {
    REQUIRE(mkdir(lock.path().c_str(), 0700) == 0);
    CHECK(has(lock.take(agent, "two").error, lock.path()));
  }
  SUBCASE("a link") {
    REQUIRE(symlink("/dev/null", lock.path().c_str()) == 0);
    CHECK(has(lock.take(agent, "two").error, lock.path()));
  }
  SUBCASE("an empty file") {
    REQUIRE(replace_file(lock.path(), "", 0644).ok());
    const LockTaken seen = lock.take(agent, "two");
    CHECK_FALSE(seen.taken);
    CHECK_FALSE(seen.alive);
    CHECK(lock.take(agent, "two", seen.touched_ns).taken);
  }
}
