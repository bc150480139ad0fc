// Manifests, shards and the names of checkpoint folders. The first byte is which of them.
#include <sys/mman.h>
#include <unistd.h>

#include "base/checkpoint_format.h"
#include "base/fd.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

namespace {

void check_manifest(std::string_view text) {
  const auto manifest = parse_manifest(text);
  if (!manifest) return HVD_CHECK(!manifest.error().text.empty());
  HVD_CHECK(manifest->shards.size() == manifest->size);
  const auto again = parse_manifest(manifest_text(*manifest));
  HVD_CHECK(again.ok() && manifest_text(*again) == manifest_text(*manifest));
}

// The digest guards against damage, not against those who can make one: theirs is made here.
void check_sealed_manifest(std::string_view text) {
  check_manifest(text);
  const size_t last = text.rfind("\"digest\"");
  if (last == std::string_view::npos) return;
  const std::string_view sealed = text.substr(0, last);
  check_manifest(std::string(sealed) + "\"digest\": \"" + digest_of(sealed) + "\"\n}\n");
}

void check_shard(std::string_view content) {
  const Fd file(memfd_create("shard", MFD_CLOEXEC));
  HVD_CHECK(file.valid() && write_all(file.get(), content).ok());
  const auto shard = read_shard("/proc/self/fd/" + std::to_string(file.get()), nullptr);
  if (!shard) return HVD_CHECK(!shard.error().text.empty());
  size_t bytes = 0;
  for (const LoadedArray& array : shard->arrays) {
    uint64_t elements = 1;
    for (const uint64_t side : array.shape) elements *= side;
    HVD_CHECK(array.bytes.size() == elements * element_size(array.dtype));
    bytes += array.bytes.size();
  }
  HVD_CHECK(bytes <= content.size());
}

void check_names(std::string_view name) {
  if (const auto step = parse_step_folder(name)) HVD_CHECK(step_folder(*step) == name);
  if (const auto draft = parse_draft_folder(name)) {
    HVD_CHECK(draft_folder(draft->step, draft->attempt) == name);
  }
  if (const auto rank = parse_shard_file(name)) HVD_CHECK(shard_file(*rank) == name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = text_of(data, size);
  switch (take_byte(text)) {
    case 'm':
      check_sealed_manifest(text);
      break;
    case 's':
      check_shard(text);
      break;
    default:
      check_names(text);
  }
  return 0;
}
