// The one engine under all collectives: moves given pieces over given links, all at once, in both
// directions, without waiting for any one of them in particular.
#pragma once

#include <span>
#include <vector>

#include "comm/links.h"
#include "comm/patience.h"

namespace hvd {

// What to send to and receive from one peer, in order. At most one Traffic per peer.
struct Traffic {
  uint32_t peer = 0;
  std::vector<std::span<const char>> out;
  std::vector<std::span<char>> in;
};

// Returns when all pieces have moved (those sent: have left this process), or with the failure that
// prevents it. Fails also when links or patience do. The pieces shrink to what has not moved.
Outcome move(Links& links, std::vector<Traffic>& traffic, Patience& patience);

// Takes in what has already come, whatever state the links are in.
void receive_remains(Links& links, std::vector<Traffic>& traffic);

// True if everything that was to be received has been.
bool received_all(const Traffic& traffic);

}  // namespace hvd
