// Saving and loading this rank's part of a checkpoint. Under hvdlaunch a rank writes its shard and
// the launcher decides the commit; alone, the process commits by itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/checkpoint_format.h"
#include "comm/agent_wire.h"
#include "comm/outcome.h"
#include "comm/patience.h"

namespace hvd {

struct CheckpointPlace {
  std::string dir;          // CKPT_DIR, empty if there is none
  std::string resume_from;  // a committed step's folder, empty if there is none
  // The state to go on from is in memory, and this is it; else none.
  const KeptState* kept = nullptr;
  int kept_memory = -1;
  std::string job;
  uint32_t attempt = 0, rank = 0, size = 1;
  AgentWire* agent = nullptr;  // none: alone
  WaitLimits limits;
};

// Writes this rank's part: what is to be told to the agent. Of a process that is alone, the whole
// checkpoint. Touches nothing but files, so that any thread may call it.
ShardSaved write_part(const CheckpointPlace& place, uint64_t step, const std::string& note,
                      const std::vector<NamedArray>& arrays);

// What became of a save whose part was written and told.
Outcome await_save(const CheckpointPlace& place, const ShardSaved& part);

// As hvd_checkpoint_save.
Outcome save_checkpoint(const CheckpointPlace& place, uint64_t step, const std::string& note,
                        const std::vector<NamedArray>& arrays);

// Where a loaded array goes.
struct ArrayTarget {
  std::string name, dtype;
  void* data = nullptr;
  uint64_t bytes = 0;
};

struct LoadedCheckpoint {
  uint64_t step = 0;
  std::string note;
};

// As hvd_checkpoint_load. A note longer than `note_limit` bytes is a failure.
Outcome load_checkpoint(const CheckpointPlace& place, const std::vector<ArrayTarget>& targets,
                        size_t note_limit, LoadedCheckpoint& loaded);

}  // namespace hvd
