// The way to an agent that runs already, for a launcher that lost its connection or comes in place
// of another: `hvdlaunch agent --job JOB --host INDEX --attach` hands its standard input and output
// to the agent, and stays as long as the agent needs them, so that whatever carries the
// conversation ends when the agent does.
//
// The door is a name in the abstract space beside the keeper's lock; who knocks is proven by the
// user that the kernel tells. A caller sends one byte: kAttach with the two descriptors, or
// kMakeRoom, by an agent that is to be the host's next: one that no launcher is heard by then ends.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/frame.h"
#include "base/message.h"
#include "base/time.h"
#include "supervisor/agent/watched_fd.h"

namespace hvd {

// A launcher that wants to attach: its hello, and what it sent behind that.
struct AttachCaller {
  Fd socket, in, out;
  FrameReader reader;
  LauncherHello hello;

  // The caller's process ends, though the agent does not.
  void dismiss();
  // With a hello that is a refusal.
  void refuse(const std::string& why);
};

class AttachDoor {
 public:
  static Result<AttachDoor> open(Poller& poller, const std::string& job, uint32_t host);

  void accept_waiting(Time now);
  // The poller named a caller.
  void serve(uint64_t serial);
  void watch();
  void expire(Time now);
  std::optional<Time> deadline() const;

  // Whose hello has come.
  std::vector<AttachCaller> take_callers();
  // Somebody wants to take this agent's place.
  bool take_wish() { return std::exchange(asked_to_make_room_, false); }

 private:
  struct Waiting {
    AttachCaller caller;
    Time until;
    bool named = false;  // it gave its descriptors
  };

  AttachDoor(Poller& poller, WatchedFd listener)
      : poller_(&poller), listener_(std::move(listener)) {}
  bool take_descriptors(Waiting& waiting);
  bool take_hello(Waiting& waiting, bool& whole);
  void drop(uint64_t serial);

  Poller* poller_;
  WatchedFd listener_;
  std::map<uint64_t, Waiting> waiting_;
  std::vector<AttachCaller> ready_;
  uint64_t next_serial_ = 1;
  bool asked_to_make_room_ = false;
};

// The process that attaches. Returns its exit code once the agent is gone, with all of the job on
// this host, or has dismissed it.
int attach_main(const std::string& job, uint32_t host);

// Asks an agent of the job that no launcher is heard by to end.
void ask_for_room(const std::string& job, uint32_t host);

}  // namespace hvd
