// What precedes every collective on every link: the ranks' agreement on what they are about to do.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/codec.h"
#include "comm/outcome.h"

namespace hvd {

enum class Op : uint8_t {
  allreduce,
  allreduce_shards,
  allreduce_device,
  broadcast,
  barrier,
  finalize,  // the last header of a link: no collective will follow
  kLast = finalize
};

struct CollectiveHeader {
  Op op = Op::barrier;
  uint8_t dtype = 0;
  uint32_t root = 0;      // broadcast
  uint32_t shards = 0;    // allreduce_shards: of all ranks
  uint64_t sequence = 0;  // collectives before this one
  uint64_t count = 0;     // elements
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.op, m.dtype, m.root, m.shards, m.sequence, m.count);
  }
  friend bool operator==(const CollectiveHeader&, const CollectiveHeader&) = default;
};

inline constexpr size_t kHeaderSize = 1 + 1 + 4 + 4 + 8 + 8;
using HeaderBytes = std::array<char, kHeaderSize>;

HeaderBytes encode_header(const CollectiveHeader& header);
// None if the bytes are no header.
std::optional<CollectiveHeader> decode_header(const HeaderBytes& bytes);

const char* op_name(Op op);
uint64_t dtype_size(hvd_dtype dtype);     // 0 if there is no such dtype
const char* dtype_name(hvd_dtype dtype);  // "float32"

// "allreduce of 10 float32 (collective 3)".
std::string describe(const CollectiveHeader& header);

}  // namespace hvd
