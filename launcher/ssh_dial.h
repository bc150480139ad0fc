// From a host's name to a command running there over SSH: configuration, name, TCP, banner, key
// exchange, host key, login, exec. Each of these can wait for somebody (a resolver, a slow server,
// an ssh-agent that asks its user), so all of it runs in a thread of its own and the loop only
// takes the result.
//
// One loop for all hosts would still need threads for resolver and ssh-agent, since both wait
// inside a library, and would save little: of the 2.3 to 3.0 ms of CPU time that a host costs the
// launcher (200 hosts behind one sshd, 17 MiB in all), plain libssh takes 1.7 to 2.1.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include "base/fd.h"
#include "base/time.h"
#include "launcher/ssh_link.h"
#include "launcher/ssh_target.h"

namespace hvd {

enum class DialPhase {
  preparing,
  resolving,
  connecting,
  awaiting_banner,
  exchanging_keys,
  logging_in,
  starting,
  pausing,  // between two tries
};

// Why there is no link. An empty text: no time was left.
struct DialFailure {
  std::string text;
  bool openssh = false;  // the program ssh may do better
};
using DialResult = std::variant<std::unique_ptr<SshLink>, DialFailure>;

// What the dialling thread and the loop share. The thread owns what it needs and may outlive the
// loop's interest: a resolver or an ssh-agent that hangs holds up nobody.
class Dial {
 public:
  // Starts the thread. It ends by itself at the target's deadline, or soon after cancel().
  static std::shared_ptr<Dial> start(SshTarget target);

  // Readable when the result is there.
  int done_fd() const { return done_.get(); }
  // The link, or why there is none; nothing while dialling. Once.
  std::optional<DialResult> take();
  void cancel();

  struct Progress {
    DialPhase phase = DialPhase::preparing;
    Time since = now();
    std::string at;       // what the phase is about: a name, or "10.0.0.1 port 22"
    std::string trouble;  // why the last try failed, if it is being tried again
  };
  Progress progress() const;

  // For the dialling thread.
  int cancelled_fd() const { return cancelled_.get(); }
  void enter(DialPhase phase, const std::string& at);
  void note_trouble(const std::string& trouble);
  void finish(DialResult result);

 private:
  Dial(Fd done, Fd cancelled) : done_(std::move(done)), cancelled_(std::move(cancelled)) {}

  const Fd done_, cancelled_;  // eventfd(2)
  mutable std::mutex mutex_;
  Progress progress_;
  std::optional<DialResult> result_;
};

}  // namespace hvd
