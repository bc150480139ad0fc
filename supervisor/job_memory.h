// What a launcher that takes a job over must know and agents cannot tell: what the one before had
// learnt and used up. Pure values; launcher/journal keeps them on disk, a moment behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "supervisor/checkpoints.h"
#include "supervisor/restart_budget.h"

namespace hvd {

struct HostMemory {
  uint32_t failures = 0;
  bool excluded = false;
  friend bool operator==(const HostMemory&, const HostMemory&) = default;
};

struct JobMemory {
  uint32_t attempt = 0;           // the newest
  uint32_t attempts_started = 0;  // in this run
  // That attempt is over, what it ended by was judged, and the next one is not started.
  bool between = false;
  int stop_signal = 0;          // by which the user asked for the stop under way
  std::vector<uint32_t> hosts;  // that hold the ranks, by host rank
  std::vector<HostMemory> ledger;
  RestartBudget::Used budget{};
  uint32_t same_endings = 0;
  bool other_port_tried = false;
  FolderKind folder = FolderKind::shared;
  std::vector<uint64_t> known, verified, rejected;  // checkpoints
  uint64_t resumed_step = 0;
  bool resumed = false, committed_ever = false, had_checkpoint = false;
  std::string foreign_path;  // the program's own newest checkpoint
  uint64_t foreign_step = 0;
  uint64_t reached_step = 0;
  friend bool operator==(const JobMemory&, const JobMemory&) = default;
};

}  // namespace hvd
