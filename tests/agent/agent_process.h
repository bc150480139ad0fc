// The launcher's side for tests: a real agent process at the other end of a socket pair, or of two
// pipes, as sshd gives them.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/frame.h"
#include "base/message.h"
#include "base/process.h"
#include "base/time.h"

namespace hvd::test {

using namespace std::chrono_literals;

// No condition of these tests needs longer, however busy the machine is.
inline constexpr Duration kPatience = 20s;

// A name for a job that no other run has.
std::string fresh_job();

struct AgentSetup {
  std::string job = fresh_job();
  uint32_t host = 0;  // its number in the job
  Duration silence = 10s;
  Duration failure_grace = 1s;
  bool pipes = false;  // instead of one socket pair
  // Of a job that survives its launcher; see LauncherHello.
  Duration survive{};
  uint64_t session = 0, heard = 0;
  bool attach = false, take_over = false;
  std::vector<std::string> environment = {"PATH=/usr/bin:/bin", "HOME=/root"};
};

class AgentProcess {
 public:
  // Starts it without a word.
  explicit AgentProcess(AgentSetup setup = {});
  // Closes the wire and waits; kills what is left.
  ~AgentProcess();

  // Greeting, hello both ways.
  AgentHello greet();
  void send(const ToAgent& message);
  void send_raw(const std::string& bytes);

  // The next message of type M that `fits`, which may have come earlier while another was waited
  // for. Fails the test if none comes. Beats are answered meanwhile unless `echo` is off.
  template <class M>
  M expect(std::function<bool(const M&)> fits = [](const M&) { return true; });
  // Reads what there is until `done` or patience ends; returns whether it was done.
  bool pump_until(const std::function<bool()>& done, Duration limit = kPatience);
  // All output of a stream that arrived so far; taken.
  std::string take_output(uint32_t rank, Stream stream, uint32_t attempt = 1);
  template <class M>
  size_t count() const;

  // Starts attempt `number` with one worker per rank 0..ranks-1 that runs argv.
  StartAttempt attempt(std::vector<std::string> argv, uint32_t ranks = 1, uint32_t number = 1);
  StartAttempt shell(const std::string& script, uint32_t ranks = 1, uint32_t number = 1);

  void hang_up();
  // Exit code, or 128 + signal, of the keeper.
  int wait_end();
  bool ended();
  // The agent's side of the channel came to its end.
  bool channel_closed() const { return !out_.valid(); }
  std::string read_errors();

  pid_t keeper() const { return child_.pid; }
  pid_t agent() const;
  const std::string& job() const { return setup_.job; }
  bool lock_is_free() const;

  bool echo = true;
  std::string greeting;

 private:
  void read_some(Duration wait);
  void take_bytes(std::string bytes);

  AgentSetup setup_;
  Child child_;
  Fd in_, out_, err_;  // to its stdin, from its stdout, from its stderr
  std::optional<int> status_;
  bool greeted_ = false;
  std::string before_;
  FrameReader reader_;
  std::list<FromAgent> waiting_;
  std::string errors_;
};

// Processes alive with HVD_JOB_ID=job in their environment: a job's whole tree, however it hides.
std::vector<pid_t> tree_of(const std::string& job);
// Waits until the tree is empty.
bool tree_is_dead(const std::string& job, Duration limit = kPatience);
// Waits until `done` without reading any wire.
bool wait_until(const std::function<bool()>& done, Duration limit = kPatience);
bool exists(const std::string& path);

// A folder of the test's own, removed at its end.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void fail_missing(const char* type, const std::string& errors);

template <class M>
M AgentProcess::expect(std::function<bool(const M&)> fits) {
  std::optional<M> found;
  pump_until([&] {
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      const M* message = std::get_if<M>(&*it);
      if (message == nullptr || !fits(*message)) continue;
      found = *message;
      waiting_.erase(it);
      return true;
    }
    return false;
  });
  if (!found) fail_missing(__PRETTY_FUNCTION__, read_errors());
  return *found;
}

template <class M>
size_t AgentProcess::count() const {
  size_t n = 0;
  for (const FromAgent& message : waiting_) n += std::holds_alternative<M>(message) ? 1 : 0;
  return n;
}

}  // namespace hvd::test
