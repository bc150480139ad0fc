// The server of wire 2: a Unix socket that this host's workers join, its path in HVD_AGENT_SOCKET.
//
// Only processes of the agent's own user are heard. A connection's first message must be a Join of
// the current attempt by a rank of this host, once per rank and attempt, within ten seconds; what
// follows is stamped with that attempt and rank, whatever it says itself. A connection that breaks
// these rules is dropped with a notice.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/frame.h"
#include "base/message.h"
#include "base/time.h"
#include "supervisor/agent/watched_fd.h"

namespace hvd {

// One message of a rank, stamped. A Join brings its page, a ShardKept its memory.
struct WorkerNews {
  uint32_t rank = 0;
  FromWorker message;
  Fd memory;
};

// Whom to welcome, and the memory of what it goes on from, if that is in memory.
struct Guest {
  Welcome welcome;
  Fd kept;
};

class WorkerSocket {
 public:
  static Result<WorkerSocket> open(Poller& poller, const std::string& path);

  // Opens an attempt to these ranks.
  void begin(uint32_t attempt, std::vector<Guest> guests);
  // Drops all connections and lets nobody join until the next begin().
  void end();

  // Takes connections that wait.
  void accept_waiting(Time now);
  // What a connection sent; `serial` is from the poll name.
  std::vector<WorkerNews> receive(uint64_t serial);
  // What a rank's connection still holds, to the last byte: the worker has ended.
  std::vector<WorkerNews> receive_last(uint32_t rank);
  // Sends to all joined workers.
  void send_all(const ToWorker& message);
  // Sends to one rank, if it has joined.
  void send_to(uint32_t rank, const ToWorker& message);
  void flush(uint64_t serial);

  // Drops connections that did not join in time.
  void expire(Time now);
  std::optional<Time> deadline() const;
  // Tells the poller what to wait for; messages are not of interest while `may_read` is false.
  void watch(bool may_read);
  // Sentences about workers that were dropped.
  std::vector<std::string> take_notices();

 private:
  struct Connection {
    WatchedFd socket;
    Time join_before;
    FrameReader reader;
    std::deque<Fd> descriptors;    // that came and belong to messages yet to be read
    std::optional<uint32_t> rank;  // joined
    std::string unsent;
    Fd beside;  // goes with the first byte of that
  };
  struct Seat {
    Guest guest;
    uint64_t serial = 0;  // of the connection that took it, 0: free
  };

  WorkerSocket(Poller& poller, WatchedFd listener)
      : poller_(&poller), listener_(std::move(listener)) {}

  // These give false when the connection is to be dropped.
  bool read_once(Connection& connection, bool& more);
  bool take_frames(uint64_t serial, Connection& connection, std::vector<WorkerNews>& news);
  bool take_join(uint64_t serial, Connection& connection, const FromWorker& message);
  bool send(Connection& connection, const std::string& frame);
  bool write_some(Connection& connection);
  void drop(uint64_t serial);
  void notice(const Connection& connection, const std::string& what);

  Poller* poller_;
  WatchedFd listener_;
  uint32_t attempt_ = 0;
  std::map<uint32_t, Seat> seats_;  // by rank
  std::map<uint64_t, Connection> connections_;
  uint64_t last_serial_ = 0;
  std::vector<std::string> notices_;
};

}  // namespace hvd
