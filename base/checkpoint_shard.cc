#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/checkpoint_format.h"
#include "base/checkpoint_format_parts.h"
#include "base/fd.h"

namespace hvd {

using namespace checkpoint;

namespace {

constexpr uint64_t kMaxHeader = 64u << 20;
constexpr std::string_view kOwnMember = "hvd_own_arrays";
constexpr std::string_view kNoteMember = "hvd_note";
constexpr std::string_view kMetadata = "__metadata__";

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

// One array's part in the state digest: everything that makes it what it is.
void add_to_state(Digest& digest, const std::string& name, const std::string& dtype,
                  const std::vector<uint64_t>& shape, std::string_view bytes) {
  std::string title = name + '\0' + dtype + '\0';
  for (const uint64_t extent : shape) title += std::to_string(extent) + ',';
  title += '\0';
  digest.add(title);
  digest.add(bytes);
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
std::vector<const NamedArray*> file_order(const std::vector<NamedArray>& arrays) {
  std::vector<const NamedArray*> order;
  for (const NamedArray& array : arrays) order.push_back(&array);
  std::stable_sort(order.begin(), order.end(), [](const NamedArray* a, const NamedArray* b) {
    return element_size(a->dtype) > element_size(b->dtype);
  });
  return order;
}

// The file up to the data: the header's length, and the header padded to a multiple of 8 bytes.
std::string shard_head(const std::string& note, const std::vector<const NamedArray*>& order) {
  Json own = Json::array();
  for (const NamedArray* array : order) {
    if (!array->replicated) own.push_back(array->name);
  }
  Json header;
  header[kMetadata] = {{kNoteMember, note}, {kOwnMember, own.dump()}};
  uint64_t offset = 0;
  for (const NamedArray* array : order) {
    header[array->name] = {{"dtype", array->dtype},
                           {"shape", array->shape},
                           {"data_offsets", {offset, offset + array->bytes}}};
    offset += array->bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string head;
  for (size_t i = 0; i < 8; ++i) head.push_back(static_cast<char>(text.size() >> (8 * i)));
  return head + text;
}

// Writes pieces to a file while counting and digesting them.
struct ShardWriter {
  int fd;
  uint64_t length = 0;
  Digest digest;

  Status add(std::string_view bytes) {
    // In pieces that are still in the processor's cache when they are written.
    constexpr size_t kPiece = 1u << 20;
    while (!bytes.empty()) {
      const std::string_view piece = bytes.substr(0, kPiece);
      digest.add(piece);
      const Status written = write_all(fd, piece);
      if (!written) return written;
      length += piece.size();
      bytes.remove_prefix(piece.size());
    }
    return Ok{};
  }
};

Result<Shard> write_open_shard(int fd, const std::string& head,
                               const std::vector<const NamedArray*>& order) {
  ShardWriter writer{fd, 0, {}};
  Digest state;
  Shard shard;
  bool any_replicated = false;
  Status status = writer.add(head);
  for (const NamedArray* array : order) {
    if (!status) return status.error();
    const std::string_view bytes(static_cast<const char*>(array->data), array->bytes);
    status = writer.add(bytes);
    if (array->replicated) {
      any_replicated = true;
      add_to_state(state, array->name, array->dtype, array->shape, bytes);
    } else {
      shard.own_arrays = true;
    }
  }
  if (!status) return status.error();
  if (fsync(fd) != 0) return errno_error("cannot sync", errno);
  shard.length = writer.length;
  shard.digest = writer.digest.hex();
  if (any_replicated) shard.state_digest = state.hex();
  return shard;
}

}  // namespace

Result<Shard> write_shard(const std::string& path, uint32_t rank, const std::string& note,
                          const std::vector<NamedArray>& arrays) {
  const Status checked = check_arrays(path, arrays);
  if (!checked) return checked.error();
  const std::vector<const NamedArray*> order = file_order(arrays);
  std::string head;
  try {
    head = shard_head(note, order);
  } catch (const nlohmann::json::exception&) {
    return Error{"cannot write " + path + ": the note or an array's name is not valid UTF-8"};
  }
  if (head.size() > kMaxHeader) return Error{"cannot write " + path + ": too many arrays"};
  // A new file, never one that a link or another name also reaches.
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return errno_error("cannot replace " + path, errno);
  }
  const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return errno_error("cannot write " + path, errno);
  Result<Shard> shard = write_open_shard(fd.get(), head, order);
  if (!shard) {
    unlink(path.c_str());
    return Error{path + ": " + shard.error().text};
  }
  shard->rank = rank;
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
      add_to_state(state, array.name, array.dtype, array.shape, array.bytes);
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

struct OpenShard {
  Fd fd;
  uint64_t length = 0;
};

Result<OpenShard> open_shard(const std::string& path, const Shard* expected) {
  // O_NONBLOCK so that opening a FIFO nobody writes to does not wait.
  OpenShard shard{Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), 0};
  if (!shard.fd) return errno_error("cannot read " + path, errno);
  struct stat st;
  if (fstat(shard.fd.get(), &st) != 0) return errno_error("cannot read " + path, errno);
  if (!S_ISREG(st.st_mode)) return Error{"cannot read " + path + ": it is not a regular file"};
  shard.length = static_cast<uint64_t>(st.st_size);
  if (expected != nullptr && shard.length != expected->length) {
    return Error{path + " is damaged: it holds " + std::to_string(shard.length) +
                 " bytes where the manifest says " + std::to_string(expected->length)};
  }
  return shard;
}

// Reads up to `size` bytes, fewer only at the end of the file.
Result<size_t> read_up_to(int fd, char* into, size_t size, const std::string& path) {
  size_t have = 0;
  while (have < size) {
    const ssize_t n = read(fd, into + have, size - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("cannot read " + path, errno);
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  return have;
}

Status compare_digest(const std::string& path, const std::string& found, const Shard& expected) {
  if (found == expected.digest) return Ok{};
  return Error{path + " is damaged: its digest is " + found + " where the manifest says " +
               expected.digest};
}

}  // namespace

Result<LoadedShard> read_shard(const std::string& path, const Shard* expected) {
  Result<OpenShard> file = open_shard(path, expected);
  if (!file) return file.error();
  LoadedShard shard;
  shard.content.reset(new (std::nothrow) char[file->length]);
  if (!shard.content) {
    return Error{"cannot read " + path + ": no memory for its " + std::to_string(file->length) +
                 " bytes"};
  }
  const Result<size_t> have = read_up_to(file->fd.get(), shard.content.get(), file->length, path);
  if (!have) return have.error();
  if (*have != file->length) return Error{path + " is damaged: it became shorter while read"};
  const std::string_view bytes(shard.content.get(), file->length);
  if (expected != nullptr) {
    const Status same = compare_digest(path, digest_of(bytes), *expected);
    if (!same) return same.error();
  }
  const std::string wrong = parse_shard(bytes, shard);
  if (!wrong.empty()) return Error{path + " is damaged: " + wrong};
  return shard;
}

Status verify_shard(const std::string& path, const Shard& expected) {
  Result<OpenShard> file = open_shard(path, &expected);
  if (!file) return file.error();
  constexpr size_t kPiece = 1u << 20;
  const auto piece = std::make_unique<char[]>(kPiece);
  Digest digest;
  uint64_t length = 0;
  while (true) {
    const Result<size_t> have = read_up_to(file->fd.get(), piece.get(), kPiece, path);
    if (!have) return have.error();
    digest.add(piece.get(), *have);
    length += *have;
    if (*have < kPiece) break;
  }
  if (length != expected.length) return Error{path + " is damaged: it changed while read"};
  return compare_digest(path, digest.hex(), expected);
}

}  // namespace hvd
