// The checkpoint format: names, shards and manifest. One place for those who write shards (workers,
// through libhvdcomm), those who list, verify and commit (agents) and the one who decides
// (launcher). No process protocol lives here.
//
//   CKPT_DIR/step-000000100/rank-0003.safetensors   one shard per rank
//   CKPT_DIR/step-000000100/manifest.json           written last, carries its own digest
//   CKPT_DIR/step-000000100.tmp-2/                  a save of attempt 2 that is not committed
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/message.h"

namespace hvd {

// Largest manifest, in bytes, that is read.
inline constexpr size_t kMaxManifest = 8u << 20;

std::string step_folder(uint64_t step);                     // "step-000000100"
std::string draft_folder(uint64_t step, uint32_t attempt);  // "step-000000100.tmp-2"
std::string shard_file(uint32_t rank);                      // "rank-0003.safetensors"

// The step of a committed folder's name; none for drafts and anything else.
std::optional<uint64_t> parse_step_folder(std::string_view name);
struct Draft {
  uint64_t step;
  uint32_t attempt;
};
std::optional<Draft> parse_draft_folder(std::string_view name);
// The rank in a shard file's name.
std::optional<uint32_t> parse_shard_file(std::string_view name);

// One named array of a shard, in the caller's memory.
struct NamedArray {
  std::string name;
  std::string dtype;            // safetensors' own: "F32", "F64", "I64", "U8", ...
  std::vector<uint64_t> shape;  // empty: a scalar
  const void* data = nullptr;
  uint64_t bytes = 0;
  bool replicated = true;  // the same on every rank
};

// Bytes of one element of a safetensors dtype, 0 if it is not one.
uint64_t element_size(std::string_view dtype);

// Whose a shard is. It stands in the shard itself, so that one that came to a wrong place is named.
struct ShardIdentity {
  std::string job;
  uint32_t attempt = 0;
  uint64_t step = 0;
  uint32_t rank = 0, size = 1;
  friend bool operator==(const ShardIdentity&, const ShardIdentity&) = default;
};

// Writes the arrays as a safetensors file, fsyncs it (not its folder), and tells its length and
// digests. Its metadata holds a checksum (CRC-32C) of each MiB of data, by which damage is found in
// its block. `note` and the names of arrays that are not replicated go into the file's metadata;
// they and all names must be UTF-8, names differ, and bytes fit shape and dtype. The state digest
// covers the replicated arrays and is empty without any. An existing file is replaced. On error no
// file is left.
Result<Shard> write_shard(const std::string& path, const ShardIdentity& identity,
                          const std::string& note, const std::vector<NamedArray>& arrays);

// A shard that is made in memory, byte for byte as write_shard's file. The memory has room for
// `length` bytes.
struct ShardPlan {
  ShardIdentity identity;
  std::string note;
  std::vector<NamedArray> arrays;  // in their order in the shard
  size_t head_bytes = 0;
  uint64_t length = 0;
};
// `what` names the shard in errors.
Result<ShardPlan> plan_shard(const std::string& what, const ShardIdentity& identity,
                             const std::string& note, const std::vector<NamedArray>& arrays);
// Copies the arrays to where they belong; from then on the plan's arrays are the copies.
void copy_arrays(ShardPlan& plan, char* memory);
// Looks at the copies and writes what stands before them: only then it is a shard.
Shard finish_shard(const ShardPlan& plan, char* memory);

// A shard in memory, checked: every offset lies inside the data, and the data is covered without
// holes. The arrays stand in the order of their data.
struct LoadedArray {
  std::string name, dtype;
  std::vector<uint64_t> shape;
  std::string_view bytes;  // into LoadedShard::content
  bool replicated = true;
};
struct LoadedShard {
  std::unique_ptr<char[]> content;  // stays where it is when the shard is moved
  std::string note;
  std::vector<LoadedArray> arrays;
  std::string state_digest;  // as in Shard
};

// What a manifest says of one of its shards.
struct ExpectedShard {
  Shard shard;
  ShardIdentity identity;
};

// Reads and checks a shard. With `expected`, its length and digest must be those. The error names
// the file and what is wrong: another's shard, the block, or else the digest.
Result<LoadedShard> read_shard(const std::string& path, const ExpectedShard* expected);

// The same of a shard in the memory behind a descriptor, which is left open.
Result<LoadedShard> read_shard(int memory, const std::string& name, const ExpectedShard& expected);

// Compares a shard file's length and digest with `expected`, reading in pieces. The error is as
// that of read_shard.
Status verify_shard(const std::string& path, const ExpectedShard& expected);

struct Manifest {
  std::string job;
  uint32_t attempt = 0;
  uint64_t step = 0;
  uint32_t size = 0;  // ranks; shards holds each once, by rank
  std::string note;   // the lowest rank's
  std::vector<Shard> shards;
  bool replicated = false;  // serves_any_rank(shards)
  // Saved by the ranks that were left after a failure: replicated, and shards holds theirs only.
  bool rescued = false;
};

// A shard of the manifest's.
ExpectedShard expected_shard(const Manifest& manifest, const Shard& shard);
// The one of that rank, null if it has none.
const Shard* shard_of(const Manifest& manifest, uint32_t rank);

// True when all ranks reported the same non-empty state digest and no array of their own: then
// any shard serves any rank, at any size.
bool serves_any_rank(const std::vector<Shard>& shards);

// JSON whose last member is a digest of all text before it.
std::string manifest_text(const Manifest& manifest);
// The error says what is wrong without naming the file.
Result<Manifest> parse_manifest(std::string_view text);

// XXH3-128 of bytes as 32 hex digits.
std::string digest_of(std::string_view bytes);

// A shard's digest: of its data, and then of the header before it, which is written last.
std::string shard_digest(std::string_view file);

}  // namespace hvd
