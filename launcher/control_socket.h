// The door for other terminals of the same user: they ask by one line, are answered with text, and
// the end of the stream ends the answer. The first line of an answer is "ok" or a refusal.
//
// The socket is a name in the abstract space, which vanishes with the launcher whatever ends it;
// who calls is proven by the user the kernel tells.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "base/poller.h"

namespace hvd {

class ControlSocket {
 public:
  // Without it the job goes on: nobody can be answered.
  explicit ControlSocket(const std::string& job);

  // Readable when serve() has something to do.
  int fd() const { return poller_.fd(); }

  struct Question {
    uint64_t caller = 0;
    std::string words;
  };
  // Never waits. Callers that say too much, or are somebody else, are cut off.
  std::vector<Question> serve();
  // The whole answer; sent as the caller takes it.
  void answer(uint64_t caller, const std::string& text);
  void refuse(uint64_t caller, const std::string& why);

 private:
  struct Caller {
    Fd fd;
    std::string said, unsent;
    bool asked = false, answered = false;
  };

  void accept_waiting();
  bool read(uint64_t number, Caller& caller, std::vector<Question>& questions);
  bool flush(Caller& caller);
  void reply(uint64_t caller, std::string text);

  Poller poller_;
  Fd listener_;
  std::map<uint64_t, Caller> callers_;
  uint64_t next_caller_ = 1;
};

// ---- the other side ----

// Jobs of any user whose launchers run in this network namespace, oldest first.
std::vector<std::string> running_jobs();

// The answer of a job of ours; waits for it up to `limit_s` seconds.
Result<std::string> ask_job(const std::string& job, const std::string& words, int limit_s);

}  // namespace hvd
