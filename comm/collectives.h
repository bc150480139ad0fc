// The collectives of the ring backend, over any kind of links. Each begins with an exchange of
// headers among all ranks: a difference is found before data moves, by everyone, and whoever is
// late is known by name. Sums travel by direct exchange: the vector is cut into one chunk per rank,
// a chunk's owner gets every rank's part of it, adds them in tree order (shard_tree.h), and gives
// the sum to all. So each rank sends and receives about twice the vector, whatever the number of
// ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/header.h"
#include "comm/links.h"
#include "comm/patience.h"
#include "comm/traffic.h"

namespace hvd {

class Communicator {
 public:
  // `links` must outlive it.
  Communicator(Links& links, WaitLimits limits) : links_(links), limits_(std::move(limits)) {}

  // As in hvd/comm.h, whose checks of arguments the caller has made. After a failure all others
  // fail in the same way.
  Outcome allreduce(const void* in, void* out, uint64_t count, hvd_dtype dtype);
  Outcome allreduce_shards(const void* shards, uint32_t total, void* out, uint64_t count,
                           hvd_dtype dtype);
  Outcome broadcast(void* buffer, uint64_t count, hvd_dtype dtype, uint32_t root);
  Outcome barrier();

  // The agreement alone, for a collective whose data goes elsewhere: over another backend.
  Outcome agree_on_device_allreduce(uint64_t count, hvd_dtype dtype);

  // Tells all ranks that no collective will follow, and gives what was sent until `deadline`.
  void finish(Time deadline);

  // From now on everything fails with this.
  Outcome fail(const Outcome& failure);
  const Outcome& state() const { return state_; }
  uint64_t completed() const { return sequence_; }

 private:
  struct Sum;  // one allreduce while it goes on
  template <class T>
  Outcome sum(const Sum& sum, Patience& patience);
  Outcome sum_typed(const Sum& sum, Patience& patience);
  Outcome run_sum(CollectiveHeader header, const Sum& sum);
  Outcome agree(const CollectiveHeader& mine, Patience& patience);
  void linger(const std::vector<HeaderBytes>& headers);
  Outcome mismatch(uint32_t peer, const std::optional<CollectiveHeader>& theirs,
                   const CollectiveHeader& mine) const;
  Outcome send_down(std::span<char> buffer, uint32_t root, Patience& patience);
  Patience patience_for(const CollectiveHeader& header) const;
  Outcome finished(const Outcome& outcome);

  Links& links_;
  WaitLimits limits_;
  uint64_t sequence_ = 0;
  Outcome state_;
};

}  // namespace hvd
