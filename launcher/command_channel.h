// A channel over any program that gives stdin and stdout of a process on the host: ssh, kubectl
// exec, docker exec, srun. The program runs in a session of its own, without a terminal to ask on.
//
// The channel is opening until the far side has written something. It is refused if the program
// ends before that and no other try is worth it, then ended when the program ends, or lost if it
// ends with the code by which it says that the connection broke. Closing it kills the program and
// what it started.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "launcher/channel.h"

namespace hvd {

struct ChannelCommand {
  std::string label;              // the host's name, for sentences
  std::vector<std::string> argv;  // the first is looked for in PATH
  std::optional<int> lost_code;   // the program's exit code for a broken connection
  // Whether the program, having ended so before the far side said anything, is worth another try;
  // there are more of them until the deadline. Null: no.
  // `late`: time enough has passed for what is not there at all (end_of_patience).
  bool (*may_recover)(int exit_code, std::string_view said, bool late) = nullptr;
  // What to add to the sentence of a program that ended before the far side said anything. Null:
  // nothing.
  std::string (*hint)(std::string_view said) = nullptr;
  // Which variables of ours the program gets. Null: all.
  bool (*passes)(std::string_view variable) = nullptr;
  Time deadline{};
  uint64_t file_limit = 0;  // the program's limit; 0: ours
};

// The error: the program cannot be run.
Result<std::unique_ptr<Channel>> start_command_channel(ChannelCommand command);

}  // namespace hvd
