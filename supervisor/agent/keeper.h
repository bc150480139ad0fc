// The keeper exists because nobody kills when the agent cannot. It is the process that the launcher
// started: parent of the agent proper, child subreaper of all workers, holder of the lease clock.
//
//   agent ended            -> KILL to every descendant until none is left, then exit
//   lease over             -> KILL to the agent as well, then the same
//   keeper killed          -> the agent sees the end of their socket pair and does the same
//
// What becomes of the tree when the two are killed (K) or stopped (S), alone or together:
//
//   agent K                     the keeper kills it
//   agent S                     the keeper kills it at the end of the lease
//   keeper K                    the agent kills it
//   keeper S                    goes on at the agent's next lease, which comes with a CONT
//   keeper K, agent S           the agent goes on by the CONT of the hang-up, and kills it
//   keeper S, agent K           the keeper goes on by the CONT of the hang-up, and kills it
//   both S                      the keeper goes on by its timer's CONT at the end of the lease
//   both K at one instant       the ranks die with the agent (PDEATHSIG). What they started lives
//   on:
//                               where there is a cgroup until the user's next agent on this host
//                               sweeps it, elsewhere for ever. It takes intent: the keeper is not
//                               called hvdlaunch, so that no kill by name finds both.
//
// It holds two things until the tree is dead: its copy of wire 1's standard output, so that the
// launcher sees the channel end only then, and an abstract Unix socket named for the job and the
// host's index, so that a second agent of the same host, come after a broken link, waits until
// then. It holds no state, talks to nobody but the agent and waits for no file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/fd.h"
#include "base/time.h"
#include "supervisor/agent/leftovers.h"

namespace hvd {

// Until the launcher's first Echo, the lease lasts this long from the start.
inline constexpr Duration kStartLease = std::chrono::seconds(60);

// What the agent proper gets from its keeper.
struct AgentSeat {
  Fd keeper;            // seqpacket: leases go up; its end of file means that the keeper is dead
  SocketFolder folder;  // the keeper removes it and the group, or the agent in its stead
  JobCgroup group;
  Time lease;  // the end of the first lease
};

// Tells the keeper the end of the lease. Lost only if the keeper is stopped.
void send_lease(const AgentSeat& seat, Time end);

// Becomes the keeper, forks, and runs `agent` in the child. Returns in the keeper when nothing of
// the job is left on this host: the agent's exit code, or 1.
int keep(const std::string& job, uint32_t host, const std::function<int(AgentSeat)>& agent);

// Sends KILL to every descendant, again and again until none is left or five minutes have passed.
void kill_whole_tree();

}  // namespace hvd
