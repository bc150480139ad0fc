// From a fresh login to a running agent of this very build: runs the cached binary, or pushes this
// one over the same connection. Pure: bytes in, bytes out.
//
// The command asks the far host for its cache; if the cache has this build, that runs and prints
// kAgentGreeting. If not, the command prints one line with its architecture and C library, and
// takes the binary from its standard input, checks its sha256 and runs it. Text that a login
// prints before is skipped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace hvd {

// The binary to run on the far hosts: this one. Read once, on first need.
struct AgentBinary {
  std::string build;   // hex of the GNU build id: names the cached file
  std::string content;
  std::string sha256;
};

// Hex of the running program's GNU build id, without reading the file.
std::string own_build_id();
// Reads /proc/self/exe and takes its digest.
Result<AgentBinary> read_own_binary();

// The one line given to the far login shell (bash, dash, csh, fish alike). `arguments` follow
// `agent` and hold letters, digits, '-' and '_' only.
std::string bootstrap_command(const std::string& build, const std::string& arguments);

class Bootstrap {
 public:
  Bootstrap(std::string host, std::string build);

  enum class State { waiting, need_binary, ready, failed };
  State state() const { return state_; }

  // Takes bytes of the far stdout. In need_binary the owner sends push() and goes on feeding; in
  // failed, error() is a sentence that names the host.
  void feed(std::string_view bytes);
  // What to send in need_binary; the state goes back to waiting.
  std::string push(const AgentBinary& binary);
  // Bytes that came after the greeting line: the first frames.
  std::string take_rest();
  const std::string& error() const { return error_; }

 private:
  std::string host_, build_;
  std::string buffer_;
  std::string error_;
  State state_ = State::waiting;
};

}  // namespace hvd
