// CRC-32C (Castagnoli) of data in blocks of one MiB: the checksums by which a damaged shard names
// the block. Uses the processor's instruction where there is one, three blocks at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace hvd {

inline constexpr size_t kChecksumBlock = 1u << 20;

// The checksum of `bytes` behind others whose checksum is `before`; 0 behind none.
uint32_t crc32c(uint32_t before, std::string_view bytes);

// Data that comes in pieces of any size.
class BlockChecksums {
 public:
  void add(std::string_view bytes);
  // Of all blocks so far, the last of which may be short.
  std::vector<uint32_t> take();

 private:
  std::vector<uint32_t> done_;
  uint32_t open_ = 0;  // checksum of the block that is not full
  size_t open_bytes_ = 0;
};

}  // namespace hvd
