#include "supervisor/agent/kept_copies.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

namespace hvd {

namespace {

constexpr size_t kCopies = 2;

bool same(const KeptState& a, const KeptState& b) {
  return a.attempt == b.attempt && a.step == b.step && a.shard.rank == b.shard.rank &&
         a.shard.digest == b.shard.digest;
}

}  // namespace

std::string KeptCopies::add(const ShardKept& kept, Fd memory) {
  struct stat st;
  if (!memory || fstat(memory.get(), &st) != 0 || !S_ISREG(st.st_mode) ||
      static_cast<uint64_t>(st.st_size) != kept.shard.length) {
    return "its memory did not come with it";
  }
  std::vector<Copy>& mine = copies_[kept.shard.rank];
  mine.push_back({{kept.attempt, kept.step, kept.shard}, std::move(memory)});
  if (mine.size() > kCopies) mine.erase(mine.begin());
  return "";
}

void KeptCopies::keep_only(const std::vector<KeptState>& wanted) {
  for (auto& [rank, mine] : copies_) {
    std::erase_if(mine, [&](const Copy& copy) {
      return std::none_of(wanted.begin(), wanted.end(),
                          [&](const KeptState& one) { return same(one, copy.state); });
    });
  }
}

const KeptCopies::Copy* KeptCopies::find(const KeptState& wanted) const {
  const auto mine = copies_.find(wanted.shard.rank);
  if (mine == copies_.end()) return nullptr;
  for (const Copy& copy : mine->second) {
    if (same(wanted, copy.state)) return &copy;
  }
  return nullptr;
}

std::optional<KeptCopies::Given> KeptCopies::give(uint32_t rank,
                                                  const std::vector<KeptState>& wanted) const {
  const Copy* given = nullptr;
  for (const KeptState& one : wanted) {
    const Copy* here = find(one);
    if (here != nullptr && (given == nullptr || one.shard.rank == rank)) given = here;
  }
  if (given == nullptr) return std::nullopt;
  return Given{given->state, Fd(fcntl(given->memory.get(), F_DUPFD_CLOEXEC, 0))};
}

}  // namespace hvd
