// The names of a job's agent of one host in the abstract space. They vanish with the last process
// that holds them, whatever ends it.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace hvd {

struct AbstractName {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};
AbstractName door_name(const std::string& job, uint32_t host);

// The one agent's, while anything of the job is alive on this host. Waits for an earlier one's end
// up to a limit, as long as the launcher is there.
Result<Fd> take_agent_lock(const std::string& job, uint32_t host);

// Who is at the other end of a connection.
bool is_same_user(int socket);

}  // namespace hvd
