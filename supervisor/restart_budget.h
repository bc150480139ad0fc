// How many relaunches without progress a job may still have. Pure. Progress refills it; a cause of
// one kind does not use up what another may need, unless the user gave one number for all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace hvd {

class RestartBudget {
 public:
  // What the program, a host, a stall or a checkpoint brought about; links break at no cost.
  enum class Kind { program, host, stall, state, link, kCount };
  using Used = std::array<uint32_t, static_cast<size_t>(Kind::kCount)>;  // relaunches by kind

  // One more relaunch for a cause of this kind, if there is one left: `limit` of each kind, or of
  // all `together`.
  bool take(Kind kind, uint32_t limit, bool together) {
    uint32_t& used = used_[static_cast<size_t>(kind)];
    if (kind != Kind::link && (together ? all() : used) >= limit) return false;
    ++used;
    return true;
  }
  // One that the budget is not asked for.
  void take_free() { ++used_[static_cast<size_t>(Kind::link)]; }
  void refill() { used_ = {}; }
  const Used& used() const { return used_; }
  void restore(const Used& used) { used_ = used; }
  // Relaunches since the last progress, whatever they cost.
  uint32_t tries() const { return all() + used_[static_cast<size_t>(Kind::link)]; }

 private:
  uint32_t all() const { return std::accumulate(used_.begin(), used_.end() - 1, 0u); }

  Used used_{};
};

}  // namespace hvd
