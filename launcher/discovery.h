// The user's discovery script: it prints which hosts there are, and is run again and again beside
// the loop. One run at a time, each with a limit; no run costs more than one process start.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/poller.h"
#include "base/process.h"
#include "base/time.h"
#include "supervisor/host.h"

namespace hvd {

class Discovery {
 public:
  // `command` is one for the shell. `first`: when it is run first; then one second after each end.
  Discovery(std::string command, Time first);
  ~Discovery();
  Discovery(const Discovery&) = delete;
  Discovery& operator=(const Discovery&) = delete;

  // Readable when advance() has something to do.
  int fd() const { return poller_.fd(); }
  // When it has, even if nothing becomes readable.
  Time deadline() const;
  // What a run that is over printed: hosts in its order, as in a host file of text or of [[host]]
  // tables, at least one, none twice; or a sentence why it is nothing to go by.
  std::optional<Result<std::vector<Host>>> advance(Time now);

 private:
  Status start(Time now);
  void read_stream(Fd& fd, std::string& text, size_t most);
  void stop();
  Result<std::vector<Host>> give_up(const std::string& why);
  std::optional<Result<std::vector<Host>>> finish(Time now);

  const std::string command_;
  Poller poller_;
  Time next_;  // start
  std::optional<Child> child_;
  bool given_up_ = false;  // it was killed and told of, and is not reaped yet
  Time limit_{};           // of the run
  Fd out_, err_;
  std::string text_, errors_;
};

// One run of it, waited for.
Result<std::vector<Host>> discover_hosts(const std::string& command);

}  // namespace hvd
