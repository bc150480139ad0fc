// From a host to how SSH reaches it: reads the ssh configuration once a job and asks `ssh -G` where
// it has something to say. Waits for files and for ssh, so it is called from dialling threads;
// shared by all of them.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/error.h"
#include "launcher/ssh_config.h"
#include "launcher/ssh_plan.h"
#include "launcher/ssh_target.h"

namespace hvd {

class SshLookup {
 public:
  // The user's and the system's configuration, or `config` in place of both. Nothing is read yet.
  explicit SshLookup(std::string config = "") : config_path_(std::move(config)) {}

  // How to reach the target. Gives up at `limit`, or when the descriptor `cancel` becomes readable.
  // The error names the host; it is the configuration's fault, or time is up.
  Result<SshPlan> plan(const SshTarget& target, Time limit, int cancel);

 private:
  using Answer = Result<std::string>;

  void read();
  std::string known_hosts_mark(const SshPlan& plan);
  std::vector<SshConfigFile> included(const std::string& pattern, bool system) const;
  Answer answer(const SshTarget& target, const SshConfigUse& use, Time limit, int cancel);
  Answer ask(const SshTarget& target, Time limit, int cancel) const;
  Answer read_ourselves(const SshTarget& target) const;

  const std::string config_path_;
  std::once_flag read_once_;
  SshConfigText config_;
  SshAccount account_;
  std::mutex mutex_;
  std::map<std::string, std::shared_future<Answer>> answers_;     // by group, user and port
  std::map<std::string, std::vector<std::string>> marked_lines_;  // by known_hosts file
};

// Where the program is, or an empty string.
std::string find_ssh_program();

}  // namespace hvd
