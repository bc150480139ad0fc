// What ranks write, on its way to the user: cut into lines, put on a page, folded, made safe for a
// terminal. The first byte is the length of the pieces it arrives in.
#include "launcher/line_cutter.h"
#include "launcher/line_folder.h"
#include "launcher/page.h"
#include "launcher/terminal_text.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

namespace {

void check_cut(std::string_view text, size_t piece) {
  LineCutter cutter;
  Page raw(false), prefixed(false);
  const LineStyle plain, named{"p: ", false};
  std::string together, copied, lines;
  const auto put = [&](std::string_view part) {
    HVD_CHECK(!part.empty() && part.size() <= kLongestLine + piece);
    HVD_CHECK(part.find('\n') >= part.size() - 1);
    together += part;
    raw.put(copied, plain, part);
    prefixed.put(lines, named, part);
  };
  in_pieces(text, piece, [&](std::string_view bytes) { cutter.feed(bytes, put); });
  cutter.flush(put);
  HVD_CHECK(together == text && copied == text && !cutter.waiting());
  prefixed.finish(lines, named);
  HVD_CHECK(lines.empty() || lines.back() == '\n');
  for (std::string_view rest = lines; !rest.empty();) {
    HVD_CHECK(take_until(rest, '\n').starts_with("p: "));
  }
}

void check_folded(std::string_view text) {
  LineFolder folder(3);
  size_t put = 0, taken = 0, count = 0;
  uint32_t rank = 0;
  while (!text.empty()) {
    rank = take_byte(text) % 3;
    folder.put(rank, "p", take_until(text, '\n'), Time{});
    ++put;
    while (const auto line = folder.take(Time{}, false)) taken += line->count;
  }
  while (const auto line = folder.take(Time{}, true)) {
    taken += line->count;
    ++count;
  }
  HVD_CHECK(taken == put && count <= put);
}

void check_terminal(std::string_view text) {
  std::string shown = terminal_lines("> ", text);
  HVD_CHECK(shown.back() == '\n' && is_utf8(shown));
  for (std::string_view rest = shown; !rest.empty();) {
    std::string line(take_until(rest, '\n'));
    HVD_CHECK(line.starts_with("> "));
    HVD_CHECK(!has_controls(line));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = text_of(data, size);
  const size_t piece = 1u + take_byte(text);
  check_cut(text, piece);
  check_folded(text);
  check_terminal(text);
  return 0;
}
