// How the user wants the ranks' lines to look.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace hvd {

struct OutputStyle {
  bool prefix = true;
  std::string prefix_template = "{rank}@{host}: ";  // also {local_rank} {attempt} {size}
  bool timestamps = false;
};

// "{name}" replaced for the names given; other text stays.
std::string fill_template(std::string_view text, const std::map<std::string, std::string>& values);

}  // namespace hvd
