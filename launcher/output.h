// The ranks' output on its way to our reader: bytes become whole lines with a prefix. Pure but for
// the wall clock of --timestamps.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "base/message.h"

namespace hvd {

struct OutputStyle {
  bool prefix = true;
  std::string prefix_template = "{rank}@{host}: ";  // also {local_rank} {attempt} {size}
  bool timestamps = false;
};

// "{name}" replaced for the names given; other text stays.
std::string fill_template(std::string_view text, const std::map<std::string, std::string>& values);

// A line longer than this is broken, so that no line of a rank can take all memory.
inline constexpr size_t kLongestLine = 64 << 10;

// Cuts one stream of one rank into whole lines.
class LineCutter {
 public:
  explicit LineCutter(std::string prefix, bool timestamps)
      : prefix_(std::move(prefix)), timestamps_(timestamps) {}

  // The whole lines that these bytes complete, each with the prefix.
  std::string feed(std::string_view bytes);
  // What was left without a newline, as a line.
  std::string finish();

 private:
  void put_line(std::string& out, std::string_view line) const;

  std::string prefix_;
  bool timestamps_;
  std::string partial_;
};

}  // namespace hvd
