// The digest for processors that have AVX2, twice as fast as for those that all have in common.
// Compiled for them alone, so that nothing else may be in this file.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace hvd::checkpoint {

void add_by_avx2(void* state, const void* bytes, unsigned long size);

void add_by_avx2(void* state, const void* bytes, unsigned long size) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), bytes, size);
}

}  // namespace hvd::checkpoint
