// The states that this host's ranks keep in memory: descriptors of memory that each rank wrote and
// that outlives it. Two of each rank, the newest.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/message.h"

namespace hvd {

class KeptCopies {
 public:
  // Takes what a rank kept. Empty, or why it cannot be used.
  std::string add(const ShardKept& kept, Fd memory);

  // All others are forgotten, and their memory is free again.
  void keep_only(const std::vector<KeptState>& wanted);

  // What a rank goes on from: its own of these, else the first that is here. The descriptor is the
  // caller's own.
  struct Given {
    KeptState state;
    Fd memory;
  };
  std::optional<Given> give(uint32_t rank, const std::vector<KeptState>& wanted) const;

 private:
  struct Copy {
    KeptState state;
    Fd memory;
  };
  const Copy* find(const KeptState& wanted) const;

  std::map<uint32_t, std::vector<Copy>> copies_;  // by rank, oldest first
};

}  // namespace hvd
