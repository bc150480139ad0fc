// Proves which addresses of other hosts this one reaches, and lets other hosts prove theirs: the
// agent's part of OpenProof and DialPeers, on the agent's loop. Nothing here waits.
//
// A caller sends the first half of the nonce, its host's number and the number of the host it
// wants; the listener answers with the second half and the same numbers turned round, and closes.
// So neither an echo nor this very host under a shared address is taken for the other host. Whoever
// sends anything else, or nothing for five seconds, is dropped and learns nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/message.h"
#include "base/time.h"
#include "supervisor/agent/watched_fd.h"

namespace hvd {

class AddressProof {
 public:
  // `host` is this host's number in the job.
  AddressProof(Poller& poller, uint32_t host) : poller_(&poller), host_(host) {}

  // Listens from now on.
  ProofOpened open(const OpenProof& message);
  void dial(const DialPeers& message, Time now);
  // Forgets everything: no socket is left.
  void close();

  void accept_waiting(Time now);
  // `serial` is from the poll name.
  void caller_ready(uint64_t serial);
  void call_ready(uint64_t serial);

  // Drops silent callers, and gives up dials whose time is over.
  void expire(Time now);
  std::optional<Time> deadline() const;
  // Ends of dials since the last call; none: an empty list.
  Dialled take_results();

 private:
  struct Caller {
    WatchedFd socket;
    Time limit;
    std::string heard;
  };
  struct Call {
    WatchedFd socket;
    uint32_t host;
    uint32_t address;
    bool connected = false;
    std::string heard;
  };

  std::string words(bool answer, uint32_t from, uint32_t to) const;
  void start_call(const DialTarget& target, uint32_t address);
  bool greet(Call& call);
  // True once there is nothing more to do with the caller.
  bool hear(Caller& caller);
  void tell(uint32_t host, uint32_t address, DialEnd end, int error = 0);

  Poller* poller_;
  uint32_t host_;
  std::string nonce_;
  std::optional<WatchedFd> listener_;
  uint32_t port_ = 0;
  std::map<uint64_t, Caller> callers_;  // by serial, oldest first
  std::map<uint64_t, Call> calls_;
  uint64_t last_serial_ = 0;
  std::optional<Time> limit_;  // of the calls
  Dialled results_;
};

}  // namespace hvd
