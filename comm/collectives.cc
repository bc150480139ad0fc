#include "comm/collectives.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/error.h"
#include "comm/shard_tree.h"

namespace hvd {

namespace {

// Vectors up to this many bytes are given whole to every rank: one exchange less, and the chunks
// would be tiny.
constexpr uint64_t kWholeExchange = 8192;
// A broadcast's pieces: while one is passed on, the next one comes in.
constexpr size_t kSegment = 1u << 20;
constexpr Duration kLinger = std::chrono::seconds(1);

template <class T>
std::span<const char> bytes_out(const T* data, uint64_t count) {
  return {reinterpret_cast<const char*>(data), count * sizeof(T)};
}

template <class T>
std::span<char> bytes_in(T* data, uint64_t count) {
  return {reinterpret_cast<char*>(data), count * sizeof(T)};
}

}  // namespace

struct Communicator::Sum {
  const void* shards = nullptr;  // this rank's, one after the other
  uint64_t total = 0;            // shards of all ranks
  void* out = nullptr;
  uint64_t count = 0;
  hvd_dtype dtype = HVD_FLOAT32;
};

namespace {

// An allreduce's parts on one rank, for one element type.
template <class T>
class Summation {
 public:
  Summation(Links& links, uint64_t total, uint64_t count)
      : links_(links), total_(total), count_(count), whole_(count * sizeof(T) <= kWholeExchange) {
    for (uint32_t rank = 0; rank < links.size(); ++rank) {
      nodes_.push_back(maximal_nodes(cut(total, rank, links.size()), total));
    }
  }

  // Sums this rank's shards up to its maximal nodes. A node of one shard stays where it is.
  void fold(const T* shards) {
    const ShardRange held = cut(total_, links_.rank(), links_.size());
    std::vector<NodeValue<T>> leaves;
    for (uint64_t i = 0; i < held.size(); ++i) {
      leaves.push_back({{0, held.first + i}, shards + i * count_});
    }
    for (const TreeNode node : nodes_[links_.rank()]) {
      if (node.level == 0) {
        mine_.push_back({node, leaves[node.index - held.first].data});
        continue;
      }
      folded_.push_back(std::make_unique_for_overwrite<T[]>(count_));
      sum_tree(node, total_, leaves, folded_.back().get(), count_);
      mine_.push_back({node, folded_.back().get()});
    }
  }

  // Gives each chunk's owner this rank's nodes of it, and gets the others' for its own.
  Outcome gather(Patience& patience) {
    const ShardRange own = chunk(links_.rank());
    size_t expected = 0;
    for (const auto& nodes : nodes_) expected += nodes.size();
    expected -= nodes_[links_.rank()].size();
    received_ = std::make_unique_for_overwrite<T[]>(expected * own.size());
    T* next = received_.get();
    std::vector<Traffic> traffic;
    for (uint32_t peer = 0; peer < links_.size(); ++peer) {
      if (peer == links_.rank()) {
        for (const NodeValue<T>& value : mine_)
          parts_.push_back({value.node, value.data + own.first});
        continue;
      }
      Traffic& t = traffic.emplace_back(Traffic{peer, {}, {}});
      const ShardRange theirs = chunk(peer);
      for (const NodeValue<T>& value : mine_) {
        t.out.push_back(bytes_out(value.data + theirs.first, theirs.size()));
      }
      for (const TreeNode node : nodes_[peer]) {
        t.in.push_back(bytes_in(next, own.size()));
        parts_.push_back({node, next});
        next += own.size();
      }
    }
    return move(links_, traffic, patience);
  }

  void combine(T* out) {
    const ShardRange own = chunk(links_.rank());
    sum_tree(root_of(total_), total_, parts_, out + own.first, own.size());
  }

  // Gives everyone this rank's chunk of the sum.
  Outcome spread(T* out, Patience& patience) {
    if (whole_) return {};
    const ShardRange own = chunk(links_.rank());
    std::vector<Traffic> traffic;
    for (uint32_t peer = 0; peer < links_.size(); ++peer) {
      if (peer == links_.rank()) continue;
      const ShardRange theirs = chunk(peer);
      traffic.push_back({peer,
                         {bytes_out(out + own.first, own.size())},
                         {bytes_in(out + theirs.first, theirs.size())}});
    }
    return move(links_, traffic, patience);
  }

 private:
  ShardRange chunk(uint32_t rank) const {
    return whole_ ? ShardRange{0, count_} : cut(count_, rank, links_.size());
  }

  Links& links_;
  uint64_t total_, count_;
  bool whole_;
  std::vector<std::vector<TreeNode>> nodes_;  // by rank
  std::vector<std::unique_ptr<T[]>> folded_;
  std::vector<NodeValue<T>> mine_;   // this rank's nodes, all elements
  std::vector<NodeValue<T>> parts_;  // all ranks' nodes, this rank's chunk
  std::unique_ptr<T[]> received_;
};

}  // namespace

template <class T>
Outcome Communicator::sum(const Sum& sum, Patience& patience) {
  Summation<T> summation(links_, sum.total, sum.count);
  summation.fold(static_cast<const T*>(sum.shards));
  const Outcome gathered = summation.gather(patience);
  if (!gathered) return gathered;
  T* out = static_cast<T*>(sum.out);
  summation.combine(out);
  return summation.spread(out, patience);
}

Outcome Communicator::sum_typed(const Sum& s, Patience& patience) {
  try {
    switch (s.dtype) {
      case HVD_FLOAT32:
        return sum<float>(s, patience);
      case HVD_FLOAT64:
        return sum<double>(s, patience);
      // Sums of signed integers wrap as those of unsigned ones do, with the same bits.
      case HVD_INT32:
        return sum<uint32_t>(s, patience);
      case HVD_INT64:
        return sum<uint64_t>(s, patience);
      case HVD_UINT8:
        return sum<uint8_t>(s, patience);
    }
  } catch (const std::bad_alloc&) {
    return {HVD_OUT_OF_MEMORY, "rank " + std::to_string(links_.rank()) +
                                   " has no memory for the parts of the sum in " + patience.what()};
  }
  return {HVD_INVALID_ARGUMENT, "unknown dtype"};
}

Outcome Communicator::allreduce(const void* in, void* out, uint64_t count, hvd_dtype dtype) {
  CollectiveHeader header{Op::allreduce, static_cast<uint8_t>(dtype), 0, 0, sequence_, count};
  return run_sum(header, {in, links_.size(), out, count, dtype});
}

Outcome Communicator::allreduce_shards(const void* shards, uint32_t total, void* out,
                                       uint64_t count, hvd_dtype dtype) {
  CollectiveHeader header{
      Op::allreduce_shards, static_cast<uint8_t>(dtype), 0, total, sequence_, count};
  return run_sum(header, {shards, total, out, count, dtype});
}

Outcome Communicator::run_sum(CollectiveHeader header, const Sum& sum) {
  if (!state_) return state_;
  Patience patience = patience_for(header);
  const Outcome agreed = agree(header, patience);
  if (!agreed || sum.count == 0) return finished(agreed);
  return finished(sum_typed(sum, patience));
}

Outcome Communicator::broadcast(void* buffer, uint64_t count, hvd_dtype dtype, uint32_t root) {
  if (!state_) return state_;
  CollectiveHeader header{Op::broadcast, static_cast<uint8_t>(dtype), root, 0, sequence_, count};
  Patience patience = patience_for(header);
  const Outcome agreed = agree(header, patience);
  if (!agreed) return finished(agreed);
  return finished(
      send_down({static_cast<char*>(buffer), count * dtype_size(dtype)}, root, patience));
}

// Down a binomial tree: with ranks counted from the root on, each gets the data from the one that
// differs in its lowest set bit, and passes it to those that differ in a lower bit.
Outcome Communicator::send_down(std::span<char> buffer, uint32_t root, Patience& patience) {
  const uint64_t size = links_.size();
  const uint64_t place = (links_.rank() + size - root) % size;
  const auto rank_at = [&](uint64_t p) { return static_cast<uint32_t>((p + root) % size); };
  std::vector<uint32_t> children;
  uint64_t bit = 1;
  for (; bit < size && (place & bit) == 0; bit <<= 1) {
    if (place + bit < size) children.push_back(rank_at(place + bit));
  }
  // The deepest subtree first.
  std::reverse(children.begin(), children.end());
  const size_t segments = (buffer.size() + kSegment - 1) / kSegment;
  const auto segment = [&](size_t i) {
    return buffer.subspan(i * kSegment, std::min(kSegment, buffer.size() - i * kSegment));
  };
  // In round i segment i comes in while the one before goes out.
  for (size_t i = 0; i <= segments; ++i) {
    std::vector<Traffic> traffic;
    if (place != 0 && i < segments) traffic.push_back({rank_at(place - bit), {}, {segment(i)}});
    for (const uint32_t child : children) {
      if (i > 0) traffic.push_back({child, {segment(i - 1)}, {}});
    }
    const Outcome moved = move(links_, traffic, patience);
    if (!moved) return moved;
  }
  return {};
}

Outcome Communicator::barrier() {
  if (!state_) return state_;
  const CollectiveHeader header{Op::barrier, 0, 0, 0, sequence_, 0};
  Patience patience = patience_for(header);
  return finished(agree(header, patience));
}

Outcome Communicator::agree_on_device_allreduce(uint64_t count, hvd_dtype dtype) {
  if (!state_) return state_;
  const CollectiveHeader header{
      Op::allreduce_device, static_cast<uint8_t>(dtype), 0, 0, sequence_, count};
  Patience patience = patience_for(header);
  return finished(agree(header, patience));
}

Outcome Communicator::agree(const CollectiveHeader& mine, Patience& patience) {
  const HeaderBytes bytes = encode_header(mine);
  std::vector<HeaderBytes> headers(links_.size(), bytes);
  std::vector<Traffic> traffic;
  for (uint32_t peer = 0; peer < links_.size(); ++peer) {
    if (peer != links_.rank()) traffic.push_back({peer, {bytes}, {headers[peer]}});
  }
  Outcome moved = links_.check();
  if (moved) moved = move(links_, traffic, patience);
  const bool complete = moved.ok();
  // The news of a rank that ended over a mismatch may overtake the header that shows the same
  // mismatch here: the cause is looked for before the consequence is told.
  if (!complete) receive_remains(links_, traffic);
  for (const Traffic& t : traffic) {
    if (!received_all(t)) continue;
    const auto theirs = decode_header(headers[t.peer]);
    if (theirs == mine) continue;
    if (complete) linger(headers);
    return mismatch(t.peer, theirs, mine);
  }
  return moved;
}

// Stays until all ranks have seen the mismatch, since a rank that ends would look like the cause to
// those that have not. All of them are in the collective, so that this takes no time.
void Communicator::linger(const std::vector<HeaderBytes>& headers) {
  const HeaderBytes farewell = encode_header({Op::finalize, 0, 0, 0, sequence_, 0});
  std::vector<HeaderBytes> answers(headers.size());
  std::vector<Traffic> traffic;
  for (uint32_t peer = 0; peer < headers.size(); ++peer) {
    const auto theirs = decode_header(headers[peer]);
    const bool gone = theirs && theirs->op == Op::finalize;
    if (peer != links_.rank() && !gone) traffic.push_back({peer, {farewell}, {answers[peer]}});
  }
  const WaitLimits limits{kLinger, kLinger, nullptr};
  Patience patience(limits, links_.rank(), "mismatch");
  static_cast<void>(move(links_, traffic, patience).ok());
}

Outcome Communicator::mismatch(uint32_t peer, const std::optional<CollectiveHeader>& theirs,
                               const CollectiveHeader& mine) const {
  return {HVD_MISMATCH, "rank " + std::to_string(peer) + " calls " +
                            (theirs ? describe(*theirs) : "something unknown") + " where rank " +
                            std::to_string(links_.rank()) + " calls " + describe(mine)};
}

Patience Communicator::patience_for(const CollectiveHeader& header) const {
  return Patience(limits_, links_.rank(), describe(header));
}

Outcome Communicator::finished(const Outcome& outcome) {
  ++sequence_;
  return outcome ? outcome : fail(outcome);
}

Outcome Communicator::fail(const Outcome& failure) {
  if (!state_) return state_;
  state_ = failure;
  // Of a lost rank and of a mismatch all ranks learn by themselves; of anything else they would
  // not.
  if (failure.code() != HVD_PEER_FAILED && failure.code() != HVD_MISMATCH) links_.close();
  return state_;
}

void Communicator::finish(Time deadline) {
  if (!state_) return links_.close();
  state_ = {HVD_NOT_INITIALIZED, "hvd_finalize was called"};
  const HeaderBytes farewell = encode_header({Op::finalize, 0, 0, 0, sequence_, 0});
  for (uint32_t peer = 0; peer < links_.size(); ++peer) {
    size_t moved = 0;
    // A peer that has gone needs no farewell.
    if (peer != links_.rank()) static_cast<void>(links_.send(peer, farewell, moved).ok());
  }
  links_.flush(deadline);
  links_.close();
}

}  // namespace hvd
