// Real sshd processes on loopback, and listeners that only look like one, for tests of the SSH
// transport. Everything lives in a folder of its own; nothing of the user's is read or changed.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/process.h"
#include "base/time.h"
#include "launcher/ssh_channel.h"

namespace hvd::testing {

// A folder that goes away with its content.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write_file(const std::string& path, const std::string& content);
std::string file_text(const std::string& path);

// Runs a program to its end, checks that it succeeded, and gives its stdout.
std::string run_program(const std::vector<std::string>& argv);
bool have_program(const std::string& name);

// Says what could not run here and why, where `./dev test` finds it for its last lines.
void not_run(const std::string& what);

// A started program, killed and reaped at the end.
class Running {
 public:
  Running(const std::vector<std::string>& argv, const std::string& log);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  pid_t pid() const { return child_.pid; }

 private:
  Child child_;
};

// A free TCP port of `address`.
int free_port(const std::string& address);

// One sshd with its keys and the key of a user who may log in.
class SshServer {
 public:
  struct Options {
    std::string address = "127.0.0.2";
    int port = 0;  // 0: a free one
    std::vector<std::string> host_key_types = {"ed25519"};
    std::string extra;           // lines of sshd_config, before ours
    std::string forced_command;  // runs in place of every command, which it finds in
                                 // $SSH_ORIGINAL_COMMAND
  };
  SshServer() : SshServer(Options{}) {}
  explicit SshServer(Options options);

  // A target that logs in here and runs `command`.
  SshTarget target(const std::string& command) const;

  std::string path(const std::string& name) const { return folder_ / name; }
  // The line of known_hosts for this server's key of that type.
  std::string known_hosts_line(const std::string& type) const;
  int port() const { return options_.port; }
  pid_t pid() const { return process_->pid(); }

 private:
  void write_config() const;
  void await_port() const;

  TemporaryFolder folder_;
  Options options_;
  std::unique_ptr<Running> process_;
};

// A TCP listener on 127.0.0.2 that hands each connection to `serve` in a thread.
class Listener {
 public:
  explicit Listener(std::function<void(Fd)> serve);
  ~Listener();
  int port() const { return port_; }
  SshTarget target() const;

 private:
  Fd socket_;
  Pipe stop_;
  int port_ = 0;
  std::thread thread_;
};

// Drives a channel as the launcher's loop does. advance() must never wait: the longest time that
// one spent neither computing nor in the queue for a processor is kept.
class Driver {
 public:
  explicit Driver(SshTarget target);
  explicit Driver(std::unique_ptr<Channel> channel) : channel_(std::move(channel)) {}
  ~Driver();

  Channel& channel() { return *channel_; }
  // Goes on until `finished` or for `limit`; false if the limit came first.
  bool run(Duration limit, const std::function<bool()>& finished);
  bool until_open(Duration limit = std::chrono::seconds(20));
  bool until_closed(Duration limit = std::chrono::seconds(20));
  // What arrived so far, stdout and stderr.
  std::string received, diagnostics;
  Duration longest_wait{};

 private:
  void advance();

  std::unique_ptr<Channel> channel_;
  Poller poller_;
  int watched_ = -1;
};

}  // namespace hvd::testing
