// From a fresh login to a running agent of this very build: runs the cached binary, or pushes this
// one over the same connection. Pure: bytes in, bytes out.
//
// The command looks into the far host's cache, ${XDG_CACHE_HOME:-~/.cache}/hvdlaunch/BUILD/, or
// where that cannot be used (read-only, full, without execution)
// ${TMPDIR:-/var/tmp}/hvdlaunch-UID/BUILD/ or ${XDG_RUNTIME_DIR:-/tmp}/hvdlaunch-UID/BUILD/. If
// this build is there as it was verified, it runs and prints kAgentGreeting. If not, the far side
// says so and takes it:
//
//   far side   hvdlaunch-agent-need ARCHITECTURE LIBC     as uname -m and getconf tell them
//   launcher   SIZE SHA256 newline, then SIZE bytes
//   far side   hvdlaunch-agent-ready BUILD                the agent's own first line
//
// or, whatever fails there, hvdlaunch-agent-error TEXT and the end. Text that a login prints before
// these lines is skipped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hvd {

// The binary to run on the far hosts: this one.
struct AgentBinary {
  std::string build;  // own_build_id(): names the cached file
  std::string content;
  std::string sha256;  // hex
};

// Reads /proc/self/exe and takes its digest.
Result<AgentBinary> read_own_binary();

// The oldest GNU C library that the running program starts with: "2.36".
std::string needed_glibc();

// The one line given to the far login shell (bash, dash, csh, fish alike). `arguments` follow
// `agent` and hold letters, digits, spaces and -_.=: only.
std::string bootstrap_command(const std::string& build, const std::string& arguments);

// The same for a program that runs the words it is given (kubectl exec, docker exec, srun) or
// gives them, joined by blanks, to the far login shell (ssh): in either case, as it comes.
std::vector<std::string> remote_words(const std::string& bootstrap_command);

class Bootstrap {
 public:
  // `host` is its name in sentences.
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
  // The last line that a login printed by itself, without control characters: where an account is
  // closed, this says so.
  const std::string& last_skipped() const { return last_skipped_; }

 private:
  void take_line(const std::string& line);
  void judge_need(std::string_view platform);
  void fail(const std::string& why);

  std::string host_, build_;
  std::string buffer_;
  size_t skipped_ = 0;
  std::string last_skipped_;
  bool pushed_ = false;
  std::string error_;
  State state_ = State::waiting;
};

}  // namespace hvd
