// Checkpoints of programs that do not save through libhvdcomm, told by how their folders look, and
// whether they are complete by the rules of those who write them. Pure, on a listing of files.
//
//   PyTorch DCP     .metadata, renamed into place last, beside all the *.distcp files it names
//   Orbax           a folder of a step, without its .orbax-checkpoint-tmp, with
//   _CHECKPOINT_METADATA TensorFlow      PREFIX.index beside PREFIX.data-0000I-of-0000N, all N of
//   them DeepSpeed       global_stepN/: model and optimizer files of ranks without a gap Megatron
//   iter_N/: files of ranks without a gap, and the tracker file has come to N Hugging Face
//   checkpoint-N/ with trainer_state.json, written last, and all parts of the model Lightning
//   NAME.ckpt with step=N in its name
//
// An empty file, and an archive that was cut off, are never part of a complete one. A pointer file
// ("latest", "checkpoint") may be older or newer than what is there: it decides nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/message.h"

namespace hvd {

struct FolderEntry {
  std::string name;
  bool folder = false;
  uint64_t size = 0;     // of a file
  bool cut_off = false;  // begins as a zip archive does, and does not end as one
  std::string text;      // of files that the rules read (is_read), as far as their limit
  std::vector<FolderEntry> entries;  // of a folder, as deep as the rules look
};

// Whether the rules want to see what is in a file of that name.
bool is_read(const std::string& name);

// Newest first; paths are below the folder that was listed.
std::vector<ListedForeign> find_foreign(const std::vector<FolderEntry>& listing);

// Lists a folder for find_foreign, without following links; ours are left out.
std::vector<FolderEntry> list_for_foreign(int folder);

}  // namespace hvd
