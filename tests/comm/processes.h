// Real processes as the ranks of a test.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/time.h"

namespace hvd {

// A folder of its own under the system's place for temporary files; goes with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

using Environment = std::map<std::string, std::string>;

// A program with its output in a file. Killed if it still runs when this goes.
class Process {
 public:
  Process(const std::vector<std::string>& argv, const Environment& environment);
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return child_.pid; }
  void signal(int number) const;
  // How it ended; a process that has not ended within `limit` is killed, and says so in the output.
  Ending wait(Duration limit);
  // Standard output and error, so far.
  std::string output() const;

 private:
  Child child_;
  Fd output_;
  bool running_ = true;
};

}  // namespace hvd
