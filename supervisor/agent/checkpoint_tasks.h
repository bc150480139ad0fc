// What the agent does in a checkpoint folder on the launcher's word (base/checkpoint_format.h has
// the layout). These functions block; they run on the task thread, never on the loop.
//
// The checkpoint folder itself may be reached through a link, since the user named it; nothing in
// it is followed through one. Errors and defects are sentences that name the file.
#pragma once

#include "base/message.h"

namespace hvd {

DirectoryProbed perform(const ProbeDirectory& task);

// A folder that does not exist holds no checkpoints. Newest first; the oldest are left out when
// they would make the answer too long for a frame.
CheckpointsListed list_checkpoints(const std::string& dir);
// The same, after a replacement that was cut short was undone: for who has the folder's lock.
CheckpointsListed perform(const ListCheckpoints& task);

CheckpointVerified perform(const VerifyCheckpoint& task);

// A step-N that is there already was refused as a checkpoint before: the new one takes its place.
Performed perform(const CommitCheckpoint& task);

// Removes nothing but folders with a manifest of ours, drafts, and what a commit or an earlier
// prune put aside. Goes on after an error and tells the first.
Performed perform(const PruneCheckpoints& task);

Performed perform(const WriteJobFile& task);

// Only a file of the agent's own user that nobody else can write. Neither text nor error: there is
// none.
JobFileRead perform(const ReadJobFile& task);

}  // namespace hvd
