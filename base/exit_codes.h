// The exit codes that are hvdlaunch's own, in one place; the manual has the same table. A rank's
// own code, or 128 and the number of the signal that ended it, is passed through beside these.
#pragma once

namespace hvd {

inline constexpr int kExitUsage = 2;            // usage or configuration, nothing was started
inline constexpr int kExitNothingToResume = 3;  // no whole checkpoint
inline constexpr int kExitNoHosts = 69;         // not enough hosts could be reached
inline constexpr int kExitGaveUp = 70;          // budget used up, or a failure without a code
inline constexpr int kExitStoppedSaved = 75;    // stopped in order, every rank's save committed
inline constexpr int kExitWallTime = 124;       // the wall time ended without a save
inline constexpr int kExitOwnFailure = 125;     // of hvdlaunch itself, or output that is not whole
inline constexpr int kExitCannotRun = 126;      // the program is there and cannot be run
inline constexpr int kExitNotFound = 127;       // the program is not there
inline constexpr int kExitSignalBase = 128;     // plus a signal's number

}  // namespace hvd
