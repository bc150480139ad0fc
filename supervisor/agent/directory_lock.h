// Keeps two jobs apart that were given one checkpoint folder. CKPT_DIR/.hvdlaunch.lock is made with
// O_EXCL, says who holds the folder, and is touched all the time while the holder lives.
//
// Whether a holder is dead is never told from clocks of two machines:
//   on its own machine (same boot id)   the kernel's lock on the file (flock) went with it
//   anywhere                            the file was not touched for its lease, on the watcher's
//   own
//                                       clock; the launcher does that waiting (TakeLock)
// A relaunch of the same job takes the lock over at once: there is one launcher, and one agent that
// it told to.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/message.h"

namespace hvd {

// The text of a lock file, one NAME=VALUE a line, and back; what is not understood is left out.
std::string lock_text(const LockRecord& record);
LockRecord parse_lock(std::string_view text);

class DirectoryLock {
 public:
  // `boot_id` of this machine.
  explicit DirectoryLock(std::string boot_id);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  // Blocks on the folder's disk. With a lock taken before, only the record changes.
  LockTaken perform(const TakeLock& task);

  // Removes the file if it is ours. Waits for no call that hangs on a disk.
  void release();

 private:
  struct State;
  bool holds(const std::string& path) const;
  void keep(Fd file, const std::string& path, const LockRecord& record);

  // Outlives this object while its thread hangs on a disk.
  std::shared_ptr<State> state_;
  const std::string boot_id_;
};

}  // namespace hvd
