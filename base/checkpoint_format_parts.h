// What the two halves of the checkpoint format share: the digest, and reading JSON that may say
// anything. For base/checkpoint_format.cc and base/checkpoint_shard.cc only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace hvd::checkpoint {

using Json = nlohmann::ordered_json;

inline constexpr size_t kDigestDigits = 32;

// As XXH3_128bits_update, of the same state.
void add_by_avx2(void* state, const void* bytes, unsigned long size);

#if defined(HVD_AVX2)
inline bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
#endif

// XXH3-128 of bytes that come in pieces.
class Digest {
 public:
  Digest() : state_(XXH3_createState()) {
    HVD_CHECK(state_ != nullptr);
    XXH3_128bits_reset(state_);
  }
  ~Digest() { XXH3_freeState(state_); }
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void add(const void* bytes, size_t size) {
    if (size == 0) return;
#if defined(HVD_AVX2)
    if (has_avx2()) return add_by_avx2(state_, bytes, size);
#endif
    XXH3_128bits_update(state_, bytes, size);
  }
  void add(std::string_view bytes) {
    add(bytes.data(), bytes.size());
  }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    char text[kDigestDigits + 1];
    std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                  static_cast<unsigned long long>(hash.low64));
    return text;
  }

 private:
  XXH3_state_t* state_;
};

// Each is false, or null, when the JSON is of another kind or lacks the member.
inline bool read_unsigned(const Json& json, uint64_t& value) {
  if (!json.is_number_unsigned()) return false;
  value = json.get<uint64_t>();
  return true;
}

inline const Json* member(const Json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

inline bool read_text(const Json& object, std::string_view name, std::string& text) {
  const Json* json = member(object, name);
  if (json == nullptr || !json->is_string()) return false;
  text = json->get<std::string>();
  return true;
}

}  // namespace hvd::checkpoint
