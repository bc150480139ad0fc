// A stream of frames, cut into pieces as long as its first byte says.
#include <vector>

#include "base/frame.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

namespace {

struct Cut {
  std::vector<std::string> bodies;
  bool broken = false;
  friend bool operator==(const Cut&, const Cut&) = default;
};

Cut cut(std::string_view stream, size_t piece) {
  FrameReader reader;
  Cut cut;
  in_pieces(stream, piece, [&](std::string_view bytes) {
    reader.feed(bytes);
    while (const auto body = reader.next()) cut.bodies.emplace_back(*body);
  });
  cut.broken = reader.broken();
  return cut;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view stream = text_of(data, size);
  const size_t piece = 1u + take_byte(stream);
  const Cut whole = cut(stream, std::max<size_t>(stream.size(), 1));
  HVD_CHECK(cut(stream, piece) == whole);
  // Put together again, the frames are the stream's begin.
  std::string frames;
  for (const std::string& body : whole.bodies) frames += frame(body);
  HVD_CHECK(stream.starts_with(frames));
  return 0;
}
