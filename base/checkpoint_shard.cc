#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "base/checkpoint_format.h"
#include "base/checkpoint_format_parts.h"
#include "base/crc32c.h"
#include "base/fd.h"
#include "base/stale.h"

namespace hvd {

using namespace checkpoint;

namespace {

constexpr uint64_t kMaxHeader = 64u << 20;
constexpr std::string_view kOwnMember = "hvd_own_arrays";
constexpr std::string_view kNoteMember = "hvd_note";
constexpr std::string_view kBlocksMember = "hvd_crc32c_of_each_mib";
constexpr std::string_view kMetadata = "__metadata__";
// Pieces that are looked at while they are in the processor's cache, a whole number of blocks.
constexpr size_t kPiece = 3 * kChecksumBlock;
// How much is written before the disk is told to begin with it.
constexpr uint64_t kWriteBehind = 16u << 20;
constexpr size_t kChecksumDigits = 8;

}  // namespace

uint64_t element_size(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL") return 1;
  return 0;
}

namespace {

// The bytes that a shape of a dtype takes, or none if they are more than 64 bits can count.
std::optional<uint64_t> bytes_of(const std::vector<uint64_t>& shape, std::string_view dtype) {
  uint64_t bytes = element_size(dtype);
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  for (const uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

// What stands before an array's bytes in the state digest: all that makes it what it is.
void add_title(Digest& digest, const std::string& name, const std::string& dtype,
               const std::vector<uint64_t>& shape) {
  std::string title = name + '\0' + dtype + '\0';
  for (const uint64_t extent : shape) title += std::to_string(extent) + ',';
  title += '\0';
  digest.add(title);
}

Status check_arrays(const std::string& path, const std::vector<NamedArray>& arrays) {
  std::set<std::string_view> names;
  for (const NamedArray& array : arrays) {
    const std::string what = "cannot write " + path + ": the array '" + array.name + "' ";
    if (array.name.empty() || array.name == kMetadata) {
      return Error{what + "has a name that the format does not allow"};
    }
    if (!names.insert(array.name).second) return Error{what + "is named twice"};
    if (element_size(array.dtype) == 0) {
      return Error{what + "has the unknown dtype '" + array.dtype + "'"};
    }
    if (bytes_of(array.shape, array.dtype) != array.bytes) {
      return Error{what + "has " + std::to_string(array.bytes) +
                   " bytes, which is not what its shape and dtype take"};
    }
    if (array.data == nullptr && array.bytes > 0) return Error{what + "has no data"};
  }
  return Ok{};
}

// The order in the file: wide elements first, so that all data is aligned.
std::vector<NamedArray> file_order(std::vector<NamedArray> arrays) {
  std::stable_sort(arrays.begin(), arrays.end(), [](const NamedArray& a, const NamedArray& b) {
    return element_size(a.dtype) > element_size(b.dtype);
  });
  return arrays;
}

std::string hex_of(const std::vector<uint32_t>& checksums) {
  std::string text;
  char digits[kChecksumDigits + 1];
  for (const uint32_t checksum : checksums) {
    std::snprintf(digits, sizeof digits, "%08x", checksum);
    text += digits;
  }
  return text;
}

// The file up to the data: the header's length, and the header padded to a multiple of 8 bytes. Its
// length does not depend on the checksums' values.
std::string shard_head(const ShardIdentity& identity, const std::string& note,
                       const std::vector<NamedArray>& order,
                       const std::vector<uint32_t>& checksums) {
  Json own = Json::array();
  for (const NamedArray& array : order) {
    if (!array.replicated) own.push_back(array.name);
  }
  Json header;
  // All values of the format's metadata are texts.
  header[kMetadata] = {{kNoteMember, note},
                       {kOwnMember, own.dump()},
                       {"hvd_job", identity.job},
                       {"hvd_attempt", std::to_string(identity.attempt)},
                       {"hvd_step", std::to_string(identity.step)},
                       {"hvd_rank", std::to_string(identity.rank)},
                       {"hvd_size", std::to_string(identity.size)},
                       {kBlocksMember, hex_of(checksums)}};
  uint64_t offset = 0;
  for (const NamedArray& array : order) {
    header[array.name] = {{"dtype", array.dtype},
                          {"shape", array.shape},
                          {"data_offsets", {offset, offset + array.bytes}}};
    offset += array.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string head;
  for (size_t i = 0; i < 8; ++i) head.push_back(static_cast<char>(text.size() >> (8 * i)));
  return head + text;
}

uint64_t data_bytes(const std::vector<NamedArray>& arrays) {
  uint64_t bytes = 0;
  for (const NamedArray& array : arrays) bytes += array.bytes;
  return bytes;
}

// Writes pieces to a file, or to none, while counting, checking and digesting them.
class ShardWriter {
 public:
  ShardWriter(std::optional<int> fd, uint64_t at) : fd_(fd), length_(at) {}

  Status add(std::string_view bytes, Digest* state) {
    while (!bytes.empty()) {
      const std::string_view piece = bytes.substr(0, kPiece);
      checksums_.add(piece);
      digest_.add(piece);
      if (state != nullptr) state->add(piece);
      if (fd_) {
        const Status written = write_at(*fd_, piece);
        if (!written) return written;
      } else {
        length_ += piece.size();
      }
      bytes.remove_prefix(piece.size());
    }
    return Ok{};
  }

  uint64_t length() const { return length_; }
  Digest& digest() { return digest_; }
  std::vector<uint32_t> take_checksums() { return checksums_.take(); }

 private:
  Status write_at(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(length_));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno_error("cannot write", errno);
      length_ += static_cast<uint64_t>(n);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    // The disk works while the next pieces are looked at; what fails is told by fsync.
    if (length_ - behind_ < kWriteBehind) return Ok{};
    sync_file_range(fd, static_cast<off_t>(behind_), static_cast<off_t>(length_ - behind_),
                    SYNC_FILE_RANGE_WRITE);
    behind_ = length_;
    return Ok{};
  }

  const std::optional<int> fd_;
  uint64_t length_, behind_ = 0;
  BlockChecksums checksums_;
  Digest digest_;
};

Status write_head(int fd, const std::string& head) {
  size_t done = 0;
  while (done < head.size()) {
    const ssize_t n = pwrite(fd, head.data() + done, head.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("cannot write", errno);
    done += static_cast<size_t>(n);
  }
  if (fsync(fd) != 0) return errno_error("cannot sync", errno);
  return Ok{};
}

// What was found out of a shard's data on its way to the disk, or where it is; what stands before
// it is in `head`.
Result<Shard> look_at_data(std::optional<int> fd, const ShardPlan& plan, std::string& head) {
  ShardWriter writer(fd, plan.head_bytes);
  Digest state;
  Shard shard;
  bool any_replicated = false;
  for (const NamedArray& array : plan.arrays) {
    const std::string_view bytes(static_cast<const char*>(array.data), array.bytes);
    if (array.replicated) add_title(state, array.name, array.dtype, array.shape);
    const Status written = writer.add(bytes, array.replicated ? &state : nullptr);
    if (!written) return written.error();
    any_replicated = any_replicated || array.replicated;
    shard.own_arrays = shard.own_arrays || !array.replicated;
  }
  head = shard_head(plan.identity, plan.note, plan.arrays, writer.take_checksums());
  HVD_CHECK(head.size() == plan.head_bytes);
  writer.digest().add(head);
  shard.rank = plan.identity.rank;
  shard.length = std::max<uint64_t>(writer.length(), head.size());
  shard.digest = writer.digest().hex();
  if (any_replicated) shard.state_digest = state.hex();
  return shard;
}

Result<Shard> write_open_shard(int fd, const ShardPlan& plan) {
  std::string head;
  Result<Shard> shard = look_at_data(fd, plan, head);
  if (!shard) return shard;
  const Status written = write_head(fd, head);
  if (!written) return written.error();
  return shard;
}

}  // namespace

Result<ShardPlan> plan_shard(const std::string& what, const ShardIdentity& identity,
                             const std::string& note, const std::vector<NamedArray>& arrays) {
  const Status checked = check_arrays(what, arrays);
  if (!checked) return checked.error();
  ShardPlan plan{identity, note, file_order(arrays), 0, 0};
  const uint64_t bytes = data_bytes(plan.arrays);
  const uint64_t blocks = (bytes + kChecksumBlock - 1) / kChecksumBlock;
  if (blocks > kMaxHeader / kChecksumDigits) {
    return Error{"cannot write " + what + ": the arrays are too large for one file"};
  }
  try {
    plan.head_bytes = shard_head(identity, note, plan.arrays, std::vector<uint32_t>(blocks)).size();
  } catch (const nlohmann::json::exception&) {
    return Error{"cannot write " + what + ": the note or an array's name is not valid UTF-8"};
  }
  if (plan.head_bytes > kMaxHeader) return Error{"cannot write " + what + ": too many arrays"};
  plan.length = plan.head_bytes + bytes;
  return plan;
}

void copy_arrays(ShardPlan& plan, char* memory) {
  char* at = memory + plan.head_bytes;
  for (NamedArray& array : plan.arrays) {
    if (array.bytes > 0) std::memcpy(at, array.data, array.bytes);
    array.data = at;
    at += array.bytes;
  }
}

Shard finish_shard(const ShardPlan& plan, char* memory) {
  std::string head;
  const Result<Shard> shard = look_at_data(std::nullopt, plan, head);
  HVD_CHECK(shard.ok());
  std::memcpy(memory, head.data(), head.size());
  return *shard;
}

Result<Shard> write_shard(const std::string& path, const ShardIdentity& identity,
                          const std::string& note, const std::vector<NamedArray>& arrays) {
  const Result<ShardPlan> plan = plan_shard(path, identity, note, arrays);
  if (!plan) return plan.error();
  // A new file, never one that a link or another name also reaches.
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return errno_error("cannot replace " + path, errno);
  }
  const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return errno_error("cannot write " + path, errno);
  Result<Shard> shard = write_open_shard(fd.get(), *plan);
  if (!shard) {
    unlink(path.c_str());
    return Error{path + ": " + shard.error().text};
  }
  return shard;
}

namespace {

// What a safetensors header says, before it is believed.
struct Entry {
  std::string name, dtype;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;
};

bool read_numbers(const Json& json, std::vector<uint64_t>& values) {
  if (!json.is_array()) return false;
  for (const Json& item : json) {
    if (!read_unsigned(item, values.emplace_back())) return false;
  }
  return true;
}

std::optional<Entry> read_entry(const std::string& name, const Json& json) {
  Entry entry;
  entry.name = name;
  std::vector<uint64_t> offsets;
  const Json* shape = member(json, "shape");
  const Json* span = member(json, "data_offsets");
  if (shape == nullptr || span == nullptr || !read_text(json, "dtype", entry.dtype) ||
      !read_numbers(*shape, entry.shape) || !read_numbers(*span, offsets) || offsets.size() != 2 ||
      offsets[0] > offsets[1] || element_size(entry.dtype) == 0 ||
      bytes_of(entry.shape, entry.dtype) != offsets[1] - offsets[0]) {
    return std::nullopt;
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return entry;
}

// The names of the arrays that are a rank's own, and the note.
bool read_metadata(const Json& json, std::string& note, std::set<std::string>& own) {
  if (!json.is_object()) return false;
  read_text(json, kNoteMember, note);
  std::string list;
  if (!read_text(json, kOwnMember, list)) return true;
  const Json names = Json::parse(list, nullptr, false);
  if (!names.is_array()) return false;
  for (const Json& name : names) {
    if (!name.is_string()) return false;
    own.insert(name.get<std::string>());
  }
  return true;
}

// Fills the shard from a parsed header and the data after it; empty, or what is wrong.
std::string fill_shard(const Json& header, std::string_view data, LoadedShard& shard) {
  if (!header.is_object()) return "its header is not a JSON object";
  std::set<std::string> own;
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadata) {
      if (!read_metadata(json, shard.note, own)) return "its metadata is malformed";
      continue;
    }
    std::optional<Entry> entry = read_entry(name, json);
    if (!entry) return "the array '" + name + "' is malformed in its header";
    entries.push_back(std::move(*entry));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  Digest state;
  bool any_replicated = false;
  uint64_t covered = 0;
  for (Entry& entry : entries) {
    if (entry.begin != covered || entry.end > data.size()) return "its arrays do not fit its data";
    covered = entry.end;
    LoadedArray array{std::move(entry.name), std::move(entry.dtype), std::move(entry.shape),
                      data.substr(entry.begin, entry.end - entry.begin), true};
    array.replicated = !own.contains(array.name);
    if (array.replicated) {
      any_replicated = true;
      add_title(state, array.name, array.dtype, array.shape);
      state.add(array.bytes);
    }
    shard.arrays.push_back(std::move(array));
  }
  if (covered != data.size()) return "its arrays do not fit its data";
  if (any_replicated) shard.state_digest = state.hex();
  return "";
}

// Empty, or what is wrong with the bytes of a shard.
std::string parse_shard(std::string_view bytes, LoadedShard& shard) {
  if (bytes.size() < 8) return "it is too short for a safetensors file";
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  bytes.remove_prefix(8);
  if (length > bytes.size() || length > kMaxHeader) return "its header is longer than the file";
  try {
    const Json header = Json::parse(bytes.substr(0, length), nullptr, false);
    return fill_shard(header, bytes.substr(length), shard);
  } catch (const nlohmann::json::exception& e) {
    return std::string("its header is malformed: ") + e.what();
  }
}

// Length of the header with what says how long it is, if the file can hold it.
std::optional<size_t> head_size(std::string_view first_bytes, uint64_t file_length) {
  if (first_bytes.size() < 8) return std::nullopt;
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(first_bytes[i])) << (8 * i);
  }
  if (length > kMaxHeader || length + 8 > file_length) return std::nullopt;
  return static_cast<size_t>(length + 8);
}

struct OpenShard {
  Fd fd;
  uint64_t length = 0;
};

// Reads up to `size` bytes at `at`, fewer only at the end of the file.
Result<size_t> read_up_to(int fd, char* into, size_t size, uint64_t at, const std::string& path) {
  size_t have = 0;
  while (have < size) {
    const ssize_t n = pread(fd, into + have, size - have, static_cast<off_t>(at + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("cannot read " + path, errno);
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  return have;
}

Result<std::string> read_head(int fd, uint64_t length, const std::string& path) {
  std::string head(8, '\0');
  Result<size_t> have = read_up_to(fd, head.data(), head.size(), 0, path);
  if (!have) return have.error();
  head.resize(*have);
  const std::optional<size_t> size = head_size(head, length);
  if (!size) return Error{"its header is longer than the file"};
  head.resize(*size);
  have = read_up_to(fd, head.data(), head.size(), 0, path);
  if (!have) return have.error();
  head.resize(*have);
  return head;
}

// What a shard says of itself, before it is believed.
struct Claims {
  std::string job, attempt, step, rank, size, checksums;
};

std::optional<Claims> read_claims(std::string_view head) {
  if (head.size() < 8) return std::nullopt;
  try {
    const Json header = Json::parse(head.substr(8), nullptr, false);
    const Json* metadata = member(header, kMetadata);
    Claims claims;
    if (metadata == nullptr || !read_text(*metadata, kBlocksMember, claims.checksums)) {
      return std::nullopt;
    }
    read_text(*metadata, "hvd_job", claims.job);
    read_text(*metadata, "hvd_attempt", claims.attempt);
    read_text(*metadata, "hvd_step", claims.step);
    read_text(*metadata, "hvd_rank", claims.rank);
    read_text(*metadata, "hvd_size", claims.size);
    return claims;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

// "it is the shard of rank 1 of 2 at step 100, saved by attempt 3 of job J", if it is another one.
std::string another_one(const Claims& claims, const ShardIdentity& wanted) {
  const bool same = claims.job == wanted.job && claims.attempt == std::to_string(wanted.attempt) &&
                    claims.step == std::to_string(wanted.step) &&
                    claims.rank == std::to_string(wanted.rank) &&
                    claims.size == std::to_string(wanted.size);
  if (same) return "";
  return "it is the shard of rank " + claims.rank + " of " + claims.size + " at step " +
         claims.step + ", saved by attempt " + claims.attempt + " of job " + claims.job;
}

// The first block of data that does not match its checksum.
std::string damaged_block(int fd, size_t head, const std::string& checksums) {
  const auto block = std::make_unique<char[]>(kChecksumBlock);
  for (uint64_t i = 0; (i + 1) * kChecksumDigits <= checksums.size(); ++i) {
    const uint64_t at = i * kChecksumBlock;
    const Result<size_t> have = read_up_to(fd, block.get(), kChecksumBlock, head + at, "");
    if (!have) return "its block " + std::to_string(i) + " cannot be read";
    const std::string found = hex_of({crc32c(0, {block.get(), *have})});
    if (checksums.compare(i * kChecksumDigits, kChecksumDigits, found) == 0) continue;
    return "its block " + std::to_string(i) + " (from byte " + std::to_string(head + at) +
           ") does not match its checksum";
  }
  return "";
}

// As exactly as can be told, why a shard is not the expected one; `why` if nothing better is known.
Error name_damage(const std::string& path, const OpenShard& file, const ExpectedShard& expected,
                  const std::string& why) {
  const Result<std::string> head = read_head(file.fd.get(), file.length, path);
  const std::optional<Claims> claims = head ? read_claims(*head) : std::nullopt;
  std::string better;
  if (!head) better = head.error().text;
  if (claims) better = another_one(*claims, expected.identity);
  if (claims && better.empty() && file.length == expected.shard.length) {
    better = damaged_block(file.fd.get(), head->size(), claims->checksums);
  }
  return Error{path + " is damaged: " + why + (better.empty() ? "" : ": " + better)};
}

Result<OpenShard> measure(Fd fd, const std::string& path, const ExpectedShard* expected) {
  OpenShard shard{std::move(fd), 0};
  if (!shard.fd) return errno_error("cannot read " + path, errno);
  struct stat st;
  if (fstat(shard.fd.get(), &st) != 0) return errno_error("cannot read " + path, errno);
  if (!S_ISREG(st.st_mode)) return Error{"cannot read " + path + ": it is not a regular file"};
  shard.length = static_cast<uint64_t>(st.st_size);
  if (expected == nullptr || shard.length == expected->shard.length) return shard;
  return name_damage(path, shard, *expected,
                     "it holds " + std::to_string(shard.length) +
                         " bytes where the manifest says " +
                         std::to_string(expected->shard.length));
}

Result<OpenShard> open_shard(const std::string& path, const ExpectedShard* expected) {
  // O_NONBLOCK so that opening a FIFO nobody writes to does not wait.
  Fd fd = open_anew([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  return measure(std::move(fd), path, expected);
}

Status compare_digest(const std::string& path, const OpenShard& file, const std::string& found,
                      const ExpectedShard& expected) {
  if (found == expected.shard.digest) return Ok{};
  return name_damage(
      path, file, expected,
      "its digest is " + found + " where the manifest says " + expected.shard.digest);
}

}  // namespace

std::string shard_digest(std::string_view file) {
  const size_t head = head_size(file, file.size()).value_or(0);
  Digest digest;
  digest.add(file.substr(head));
  digest.add(file.substr(0, head));
  return digest.hex();
}

namespace {

Result<LoadedShard> read_open_shard(const Result<OpenShard>& file, const std::string& path,
                                    const ExpectedShard* expected) {
  if (!file) return file.error();
  LoadedShard shard;
  shard.content.reset(new (std::nothrow) char[file->length]);
  if (!shard.content) {
    return Error{"cannot read " + path + ": no memory for its " + std::to_string(file->length) +
                 " bytes"};
  }
  const Result<size_t> have =
      read_up_to(file->fd.get(), shard.content.get(), file->length, 0, path);
  if (!have) return have.error();
  if (*have != file->length) return Error{path + " is damaged: it became shorter while read"};
  const std::string_view bytes(shard.content.get(), file->length);
  if (expected != nullptr) {
    const Status same = compare_digest(path, *file, shard_digest(bytes), *expected);
    if (!same) return same.error();
  }
  const std::string wrong = parse_shard(bytes, shard);
  if (!wrong.empty()) return Error{path + " is damaged: " + wrong};
  return shard;
}

}  // namespace

Result<LoadedShard> read_shard(const std::string& path, const ExpectedShard* expected) {
  return read_open_shard(open_shard(path, expected), path, expected);
}

Result<LoadedShard> read_shard(int memory, const std::string& name, const ExpectedShard& expected) {
  Fd fd(fcntl(memory, F_DUPFD_CLOEXEC, 0));
  return read_open_shard(measure(std::move(fd), name, &expected), name, &expected);
}

Status verify_shard(const std::string& path, const ExpectedShard& expected) {
  Result<OpenShard> file = open_shard(path, &expected);
  if (!file) return file.error();
  const Result<std::string> head = read_head(file->fd.get(), file->length, path);
  if (!head) return name_damage(path, *file, expected, "it has no header");
  // Small enough to stay in the processor's cache between the read and the digest.
  constexpr size_t kRead = 256u << 10;
  const auto piece = std::make_unique<char[]>(kRead);
  Digest digest;
  uint64_t length = head->size();
  while (true) {
    const Result<size_t> have = read_up_to(file->fd.get(), piece.get(), kRead, length, path);
    if (!have) return have.error();
    digest.add(piece.get(), *have);
    length += *have;
    if (*have < kRead) break;
  }
  if (length != expected.shard.length) {
    return Error{path + " is damaged: it changed while read"};
  }
  digest.add(*head);
  return compare_digest(path, *file, digest.hex(), expected);
}

}  // namespace hvd
