// How the user wants the ranks' lines to look.
#pragma once

#include <string>

namespace hvd {

struct OutputStyle {
  bool prefix = true;
  std::string prefix_template = "{rank}@{host}: ";  // also {local_rank} {attempt} {size}
  bool timestamps = false;
};

}  // namespace hvd
