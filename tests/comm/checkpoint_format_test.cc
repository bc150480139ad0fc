// The checkpoint format: what is written reads back the same, and no damage goes unseen.
#include "base/checkpoint_format.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "base/crc32c.h"
#include "base/fd.h"
#include "tests/comm/processes.h"

using namespace hvd;

namespace {

struct Sample {
  std::vector<float> weights = {1.5f, -2.25f, 3.0f, 4.0f, 5.0f, 6.0f};
  std::vector<double> momentum = {0.125, -1e300};
  std::vector<uint8_t> flags = {1, 2, 3};
  int64_t counter = 42;

  std::vector<NamedArray> arrays() const {
    return {{"flags", "U8", {3}, flags.data(), 3, true},
            {"weights", "F32", {2, 3}, weights.data(), 24, true},
            {"momentum", "F64", {2}, momentum.data(), 16, true},
            {"counter", "I64", {}, &counter, 8, true},
            {"nothing", "F32", {0, 7}, nullptr, 0, true}};
  }
};

void write_file(const std::string& path, std::string_view bytes) {
  REQUIRE(replace_file(path, bytes, 0644).ok());
}

std::string file_text(const std::string& path) {
  const Result<std::string> text = read_file(path, 1u << 20);
  REQUIRE(text.ok());
  return *text;
}

const LoadedArray* find(const LoadedShard& shard, const std::string& name) {
  for (const LoadedArray& array : shard.arrays) {
    if (array.name == name) return &array;
  }
  return nullptr;
}

Manifest sample_manifest() {
  Manifest manifest;
  manifest.job = "job-\"1\"";
  manifest.attempt = 3;
  manifest.step = 100;
  manifest.size = 2;
  manifest.note = "{\"epoch\": 1}\n\t\x01 \xc3\xa9";
  const std::string same(32, 'a');
  manifest.shards = {{0, 1234, std::string(32, '1'), same, false},
                     {1, 1ull << 40, std::string(32, '2'), same, false}};
  manifest.replicated = serves_any_rank(manifest.shards);
  return manifest;
}

}  // namespace

TEST_CASE("names of steps, drafts and shards") {
  CHECK(step_folder(100) == "step-000000100");
  CHECK(draft_folder(100, 2) == "step-000000100.tmp-2");
  CHECK(shard_file(3) == "rank-0003.safetensors");
  for (const uint64_t step :
       {uint64_t{0}, uint64_t{7}, uint64_t{999999999}, uint64_t{1000000000}, UINT64_MAX}) {
    CHECK(parse_step_folder(step_folder(step)) == step);
    const auto draft = parse_draft_folder(draft_folder(step, 4000000000u));
    REQUIRE(draft.has_value());
    CHECK(draft->step == step);
    CHECK(draft->attempt == 4000000000u);
  }
  for (const uint32_t rank : {0u, 9999u, 10000u, 4294967295u}) {
    CHECK(parse_shard_file(shard_file(rank)) == rank);
  }
  for (const char* name : {"", "step-", "step-1", "step-0000000100", "step-00000010x",
                           "step--00000001", "step-+00000001", "step-000000100 ",
                           "step-000000100.tmp-2", "Step-000000100", "step-99999999999999999999"}) {
    CAPTURE(name);
    CHECK(!parse_step_folder(name));
  }
  for (const char* name :
       {"step-000000100", "step-000000100.tmp-", "step-000000100.tmp-02", "step-000000100.tmp-2x",
        "step-1.tmp-2", "step-000000100.tmp-4294967296"}) {
    CAPTURE(name);
    CHECK(!parse_draft_folder(name));
  }
  for (const char* name : {"rank-3.safetensors", "rank-0003.safetensor", "rank-00003.safetensors",
                           "rank-.safetensors", "rank-0003.safetensors~"}) {
    CAPTURE(name);
    CHECK(!parse_shard_file(name));
  }
}

TEST_CASE("a shard reads back as it was written") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/rank-0005.safetensors";
  const Sample sample;
  write_file(path, "an older file is replaced");
  const Result<Shard> shard =
      write_shard(path, {"job", 1, 2, 5, 6}, "note \xc3\xa9", sample.arrays());
  REQUIRE(shard.ok());
  CHECK(shard->rank == 5);
  CHECK(shard->length == file_text(path).size());
  CHECK(shard->digest == shard_digest(file_text(path)));
  CHECK(!shard->own_arrays);
  const ExpectedShard expected{*shard, {"job", 1, 2, 5, 6}};
  CHECK(verify_shard(path, expected).ok());
  Result<LoadedShard> read = read_shard(path, &expected);
  REQUIRE(read.ok());
  const LoadedShard loaded = std::move(*read);
  CHECK(loaded.note == "note \xc3\xa9");
  CHECK(loaded.state_digest == shard->state_digest);
  REQUIRE(loaded.arrays.size() == 5);
  const LoadedArray* weights = find(loaded, "weights");
  REQUIRE(weights != nullptr);
  CHECK(weights->dtype == "F32");
  CHECK(weights->shape == std::vector<uint64_t>{2, 3});
  CHECK(weights->bytes.size() == 24);
  CHECK(std::memcmp(weights->bytes.data(), sample.weights.data(), 24) == 0);
  CHECK(std::memcmp(find(loaded, "counter")->bytes.data(), &sample.counter, 8) == 0);
  CHECK(find(loaded, "counter")->shape.empty());
  CHECK(find(loaded, "nothing")->bytes.empty());
}

TEST_CASE("the state digest sees every part of the replicated arrays and nothing else") {
  const TemporaryFolder folder;
  const auto digest = [&](const std::vector<NamedArray>& arrays) {
    const Result<Shard> shard = write_shard(folder.path() + "/s", {}, "", arrays);
    REQUIRE(shard.ok());
    return *shard;
  };
  Sample sample;
  const Shard base = digest(sample.arrays());
  std::vector<NamedArray> arrays = sample.arrays();
  arrays[1].shape = {3, 2};
  CHECK(digest(arrays).state_digest != base.state_digest);
  arrays = sample.arrays();
  arrays[1].name = "weight";
  CHECK(digest(arrays).state_digest != base.state_digest);
  arrays = sample.arrays();
  arrays[1].dtype = "I32";
  CHECK(digest(arrays).state_digest != base.state_digest);
  std::vector<float> own = {1};
  arrays = sample.arrays();
  arrays.push_back({"own", "F32", {1}, own.data(), 4, false});
  const Shard with_own = digest(arrays);
  CHECK(with_own.state_digest == base.state_digest);
  CHECK(with_own.own_arrays);
  own[0] = 2;
  CHECK(digest(arrays).state_digest == base.state_digest);
  CHECK(digest(arrays).digest != with_own.digest);
  CHECK(digest({{"own", "F32", {1}, own.data(), 4, false}}).state_digest.empty());
  Result<LoadedShard> read = read_shard(folder.path() + "/s", nullptr);
  REQUIRE(read.ok());
  CHECK(!read->arrays.front().replicated);
  sample.weights[5] = 7;
  CHECK(digest(sample.arrays()).state_digest != base.state_digest);
}

TEST_CASE("arrays that the format cannot hold are refused") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/s";
  const float x[4] = {};
  const auto refused = [&](const std::vector<NamedArray>& arrays, const std::string& note) {
    const Result<Shard> shard = write_shard(path, {}, note, arrays);
    return !shard.ok() && !shard.error().text.empty() && access(path.c_str(), F_OK) != 0;
  };
  CHECK(refused({{"", "F32", {1}, x, 4, true}}, ""));
  CHECK(refused({{"__metadata__", "F32", {1}, x, 4, true}}, ""));
  CHECK(refused({{"a", "F32", {1}, x, 4, true}, {"a", "F32", {1}, x, 4, true}}, ""));
  CHECK(refused({{"a", "F31", {1}, x, 4, true}}, ""));
  CHECK(refused({{"a", "F32", {2}, x, 4, true}}, ""));
  CHECK(refused({{"a", "F32", {1ull << 62, 16}, x, 0, true}}, ""));
  CHECK(refused({{"a", "F32", {1}, nullptr, 4, true}}, ""));
  CHECK(refused({{"a\xff", "F32", {1}, x, 4, true}}, ""));
  CHECK(refused({{"a", "F32", {1}, x, 4, true}}, "\xff"));
}

TEST_CASE("every truncation and every flipped bit of a shard is found") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/rank-0000.safetensors";
  const Sample sample;
  const Result<Shard> shard = write_shard(path, {}, "note", sample.arrays());
  REQUIRE(shard.ok());
  const ExpectedShard expected{*shard, {}};
  const std::string whole = file_text(path);
  // In memory: thousands of files on a disk take their time.
  const Fd file(memfd_create("damaged", MFD_CLOEXEC));
  const std::string damaged = "/proc/self/fd/" + std::to_string(file.get());
  const auto found = [&](std::string_view bytes) {
    REQUIRE(ftruncate(file.get(), 0) == 0);
    REQUIRE(pwrite(file.get(), bytes.data(), bytes.size(), 0) ==
            static_cast<ssize_t>(bytes.size()));
    const Status verified = verify_shard(damaged, expected);
    const Result<LoadedShard> read = read_shard(damaged, &expected);
    // Without a manifest there is no digest to compare with, but reading must end well.
    const Result<LoadedShard> alone = read_shard(damaged, nullptr);
    return !verified.ok() && !read.ok() &&
           verified.error().text.find(damaged) != std::string::npos &&
           (alone.ok() || !alone.error().text.empty());
  };
  size_t unseen = 0;
  for (size_t length = 0; length < whole.size(); ++length) {
    if (!found(std::string_view(whole).substr(0, length))) ++unseen;
  }
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    if (!found(bytes)) ++unseen;
  }
  if (!found(whole + '\0')) ++unseen;
  CHECK(unseen == 0);
  CHECK(!verify_shard(folder.path(), expected).ok());
  CHECK(!verify_shard(folder.path() + "/none", expected).ok());
  REQUIRE(mkfifo((folder.path() + "/fifo").c_str(), 0600) == 0);
  CHECK(!verify_shard(folder.path() + "/fifo", expected).ok());
}

TEST_CASE("headers that lie are refused without a digest too") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/s";
  const auto refused = [&](const std::string& header, size_t data) {
    std::string bytes;
    for (size_t i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i)));
    write_file(path, bytes + header + std::string(data, 'x'));
    const Result<LoadedShard> read = read_shard(path, nullptr);
    return !read.ok() && read.error().text.find(path) != std::string::npos;
  };
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return "{\"a\":{\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  CHECK(!refused(entry("[2]", "[0,8]"), 8));
  CHECK(refused(entry("[2]", "[0,8]"), 7));
  CHECK(refused(entry("[2]", "[0,8]"), 9));
  CHECK(refused(entry("[2]", "[4,12]"), 12));
  CHECK(refused(entry("[3]", "[0,8]"), 8));
  CHECK(refused(entry("[2]", "[8,0]"), 8));
  CHECK(refused(entry("[2]", "[0,8,8]"), 8));
  CHECK(refused(entry("[-2]", "[0,8]"), 8));
  CHECK(refused(entry("[4611686018427387904,4]", "[0,0]"), 0));
  CHECK(refused(entry("\"2\"", "[0,8]"), 8));
  CHECK(refused("[]", 0));
  CHECK(refused("{", 0));
  CHECK(refused("{\"__metadata__\":7}", 0));
  CHECK(refused("{\"__metadata__\":{\"hvd_own_arrays\":\"[1]\"}}", 0));
  CHECK(refused(std::string(100000, '['), 0));
}

TEST_CASE("n33: a shard of something else says whose it is, and damage is told by its block") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/s";
  std::vector<uint8_t> bytes(5 * kChecksumBlock + 1000, 7);
  const std::vector<NamedArray> arrays = {
      {"a", "U8", {bytes.size()}, bytes.data(), bytes.size(), false}};
  const ShardIdentity identity{"job", 2, 100, 1, 4};
  const Result<Shard> shard = write_shard(path, identity, "", arrays);
  REQUIRE(shard.ok());
  const auto why = [&](const ShardIdentity& wanted, const std::string& digest) {
    ExpectedShard expected{*shard, wanted};
    expected.shard.digest = digest;
    const Status verified = verify_shard(path, expected);
    REQUIRE(!verified.ok());
    CHECK(verified.error().text.find(path + " is damaged: ") == 0);
    return verified.error().text;
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const std::string other(32, '0');
  for (const ShardIdentity& wanted :
       {ShardIdentity{"other", 2, 100, 1, 4}, ShardIdentity{"job", 3, 100, 1, 4},
        ShardIdentity{"job", 2, 101, 1, 4}, ShardIdentity{"job", 2, 100, 0, 4},
        ShardIdentity{"job", 2, 100, 1, 5}}) {
    CHECK(has(why(wanted, other),
              "it is the shard of rank 1 of 4 at step 100, saved by attempt 2 of job job"));
  }
  const size_t head = shard->length - bytes.size();
  for (const size_t block : {0, 2, 4, 5}) {
    CAPTURE(block);
    const Fd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    const auto at = static_cast<off_t>(head + block * kChecksumBlock + 999);
    REQUIRE(pwrite(fd.get(), "\6", 1, at) == 1);
    CHECK(has(why(identity, shard->digest), "its block " + std::to_string(block) + " (from byte "));
    REQUIRE(pwrite(fd.get(), "\7", 1, at) == 1);
  }
  CHECK(verify_shard(path, {*shard, identity}).ok());
}

TEST_CASE("checksums of blocks are the same however the data comes") {
  CHECK(crc32c(0, "123456789") == 0xe3069283);
  CHECK(crc32c(crc32c(0, "12345"), "6789") == 0xe3069283);
  CHECK(crc32c(0, "") == 0);
  std::string data(7 * kChecksumBlock + 12345, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 2654435761u >> 13);
  std::vector<uint32_t> expected;
  for (size_t at = 0; at < data.size(); at += kChecksumBlock) {
    expected.push_back(crc32c(0, std::string_view(data).substr(at, kChecksumBlock)));
  }
  for (const size_t piece : {size_t{1000}, kChecksumBlock - 1, 3 * kChecksumBlock, data.size()}) {
    BlockChecksums checksums;
    for (size_t at = 0; at < data.size(); at += piece) {
      checksums.add(std::string_view(data).substr(at, piece));
    }
    CHECK(checksums.take() == expected);
  }
}

TEST_CASE("a manifest reads back as it was written") {
  const Manifest manifest = sample_manifest();
  const Result<Manifest> read = parse_manifest(manifest_text(manifest));
  REQUIRE(read.ok());
  CHECK(read->job == manifest.job);
  CHECK(read->attempt == 3);
  CHECK(read->step == 100);
  CHECK(read->size == 2);
  CHECK(read->note == manifest.note);
  CHECK(read->replicated);
  REQUIRE(read->shards.size() == 2);
  CHECK(read->shards[1].rank == 1);
  CHECK(read->shards[1].length == 1ull << 40);
  CHECK(read->shards[1].digest == std::string(32, '2'));
  CHECK(read->shards[1].state_digest == std::string(32, 'a'));
  CHECK(manifest_text(*read) == manifest_text(manifest));
}

TEST_CASE("every truncation and every flipped bit of a manifest is found") {
  const std::string whole = manifest_text(sample_manifest());
  size_t unseen = 0;
  for (size_t length = 0; length < whole.size(); ++length) {
    if (parse_manifest(std::string_view(whole).substr(0, length)).ok()) ++unseen;
  }
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string text = whole;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    if (parse_manifest(text).ok()) ++unseen;
  }
  CHECK(unseen == 0);
  CHECK(!parse_manifest(whole + "\n").ok());
  CHECK(!parse_manifest("").ok());
}

TEST_CASE("manifests that are whole but make no sense are refused") {
  const auto refused = [](auto change) {
    Manifest manifest = sample_manifest();
    change(manifest);
    return !parse_manifest(manifest_text(manifest)).ok();
  };
  CHECK(!refused([](Manifest&) {}));
  CHECK(refused([](Manifest& m) { m.size = 3; }));
  CHECK(refused([](Manifest& m) { m.shards[1].rank = 0; }));
  CHECK(refused([](Manifest& m) { m.shards[1].rank = 2; }));
  CHECK(refused([](Manifest& m) { m.shards[0].digest = "12"; }));
  CHECK(refused([](Manifest& m) { m.shards[0].state_digest = "../../etc"; }));
}

TEST_CASE("any shard serves any rank only if all are the same and nothing is a rank's own") {
  std::vector<Shard> shards = sample_manifest().shards;
  CHECK(serves_any_rank(shards));
  shards[1].own_arrays = true;
  CHECK(!serves_any_rank(shards));
  shards = sample_manifest().shards;
  shards[1].state_digest = std::string(32, 'b');
  CHECK(!serves_any_rank(shards));
  shards[0].state_digest = shards[1].state_digest = "";
  CHECK(!serves_any_rank(shards));
  CHECK(!serves_any_rank({}));
}
