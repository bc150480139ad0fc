// How the ranks' TCP links come to be: each rank listens, all learn all addresses through their
// agents, and of each pair the higher rank calls the lower one. A link opens with a hello in each
// direction that proves job (by its secret), attempt and rank; whoever calls without one learns
// nothing, is dropped and delays nothing.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "comm/agent_wire.h"
#include "comm/outcome.h"
#include "comm/patience.h"

namespace hvd {

struct MeshIdentity {
  uint32_t attempt = 0, rank = 0, size = 0;
  std::string secret;
};

struct Listener {
  Fd fd;
  std::string address;  // "10.0.0.2:4711", "[fd00::2]:4711"
};

// Listens on a port of the kernel's choice at `host`, a numeric address (empty: 127.0.0.1).
Outcome listen_at(const std::string& host, Listener& listener);

// Opens a link to every other rank: `addresses` by rank. Fails as agent and patience do. The
// sockets are non-blocking, by rank; this rank's own stays invalid.
Outcome connect_mesh(const MeshIdentity& self, const Listener& listener,
                     const std::vector<std::string>& addresses, AgentWire& agent,
                     Patience& patience, std::vector<Fd>& sockets);

}  // namespace hvd
