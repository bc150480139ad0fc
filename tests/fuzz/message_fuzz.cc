// Messages of both wires and the headers between workers. The first byte is which of them.
#include <algorithm>

#include "base/message.h"
#include "comm/header.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

namespace {

// What is a message is written as the very bytes that it was read from.
template <class Wire>
void check_message(const std::optional<Wire>& message, std::string_view body) {
  constexpr size_t kLength = 4;
  if (message) HVD_CHECK(std::string_view(to_frame(*message)).substr(kLength) == body);
}

void check_header(std::string_view body) {
  HeaderBytes bytes{};
  std::copy_n(body.begin(), std::min(body.size(), bytes.size()), bytes.begin());
  const auto header = decode_header(bytes);
  if (!header) return;
  HVD_CHECK(encode_header(*header) == bytes);
  HVD_CHECK(!has_controls(describe(*header)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view body = text_of(data, size);
  switch (take_byte(body)) {
    case 'a':
      check_message(parse_to_agent(body), body);
      break;
    case 'l':
      check_message(parse_from_agent(body), body);
      break;
    case 'w':
      check_message(parse_to_worker(body), body);
      break;
    case 'f':
      check_message(parse_from_worker(body), body);
      break;
    default:
      check_header(body);
  }
  return 0;
}
