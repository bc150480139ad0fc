#include "base/crc32c.h"

#include <array>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace hvd {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ kPolynomial : value >> 1;
    table[byte] = value;
  }
  return table;
}();

// All of these take and give the inverted value.
uint32_t by_table(uint32_t value, const char* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    value = value >> 8 ^ kTable[(value ^ static_cast<unsigned char>(bytes[i])) & 0xff];
  }
  return value;
}

#if defined(__x86_64__)

uint64_t word_at(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t value, const char* bytes,
                                                          size_t size) {
  uint64_t wide = value;
  for (; size >= 8; bytes += 8, size -= 8) wide = _mm_crc32_u64(wide, word_at(bytes));
  value = static_cast<uint32_t>(wide);
  for (; size > 0; ++bytes, --size) {
    value = _mm_crc32_u8(value, static_cast<unsigned char>(*bytes));
  }
  return value;
}

// One instruction takes three cycles, and three of them take no longer.
__attribute__((target("sse4.2"))) void three_blocks(const char* bytes, uint32_t* values) {
  uint64_t a = ~uint32_t{0}, b = a, c = a;
  for (size_t at = 0; at < kChecksumBlock; at += 8) {
    a = _mm_crc32_u64(a, word_at(bytes + at));
    b = _mm_crc32_u64(b, word_at(bytes + kChecksumBlock + at));
    c = _mm_crc32_u64(c, word_at(bytes + 2 * kChecksumBlock + at));
  }
  values[0] = ~static_cast<uint32_t>(a);
  values[1] = ~static_cast<uint32_t>(b);
  values[2] = ~static_cast<uint32_t>(c);
}

bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
}

#endif

}  // namespace

uint32_t crc32c(uint32_t before, std::string_view bytes) {
#if defined(__x86_64__)
  if (has_instruction()) return ~by_instruction(~before, bytes.data(), bytes.size());
#endif
  return ~by_table(~before, bytes.data(), bytes.size());
}

void BlockChecksums::add(std::string_view bytes) {
  while (!bytes.empty()) {
#if defined(__x86_64__)
    if (open_bytes_ == 0 && bytes.size() >= 3 * kChecksumBlock && has_instruction()) {
      uint32_t values[3];
      three_blocks(bytes.data(), values);
      done_.insert(done_.end(), values, values + 3);
      bytes.remove_prefix(3 * kChecksumBlock);
      continue;
    }
#endif
    const std::string_view piece = bytes.substr(0, kChecksumBlock - open_bytes_);
    open_ = crc32c(open_, piece);
    open_bytes_ += piece.size();
    bytes.remove_prefix(piece.size());
    if (open_bytes_ < kChecksumBlock) continue;
    done_.push_back(open_);
    open_ = 0;
    open_bytes_ = 0;
  }
}

std::vector<uint32_t> BlockChecksums::take() {
  if (open_bytes_ > 0) done_.push_back(open_);
  open_ = 0;
  open_bytes_ = 0;
  return std::exchange(done_, {});
}

}  // namespace hvd
