// `hvdlaunch checkpoints CKPT_DIR`: what is there, what is whole, and what would be resumed.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace hvd {

struct CheckpointsCommand {
  std::string dir;      // absolute
  bool verify = false;  // read everything, and compare it with the digests
  bool prune = false;   // remove what a run would: all but the newest, and what was left unfinished
  bool json = false;
};

// `words` follow the command word.
Result<CheckpointsCommand> parse_checkpoints(const std::vector<std::string>& words,
                                             const std::string& directory);

struct CheckpointsShown {
  int code = 0;      // 0; 3 when nothing would be resumed; 1 when --verify found damage; 2 refused
  std::string text;  // for standard output
  std::string error;
};
CheckpointsShown show_checkpoints(const CheckpointsCommand& command);

}  // namespace hvd
