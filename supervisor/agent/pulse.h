// Whether a rank still makes progress. Pure: signs and the time go in.
//
// A rank is watched from its first sign on: what it does before, loading and compiling, is nobody's
// to judge. A sign is a step, a heartbeat, a collective, WATCHDOG=1; its output too if the user
// asked for a limit.
#pragma once

#include <optional>

#include "base/time.h"

namespace hvd {

class Pulse {
 public:
  enum class Change { none, stalled, moved };

  // `limit`: without a sign for so long it is stalled.
  explicit Pulse(Duration limit) : limit_(limit) {}

  void sign(Time now);
  // It says that the next sign may take so long.
  void extend(Time now, Duration length);
  // Nobody looked, or nothing ran, for so long: that is not held against it.
  void forgive(Duration gap);
  // While it reads or writes a checkpoint, disks may take their time.
  void set_patient(bool patient) { patient_ = patient; }

  // What became of it since the last call.
  Change judge(Time now);
  Duration quiet(Time now) const;

 private:
  Duration limit_;
  std::optional<Time> last_;  // sign
  Time not_before_{};         // of an extension
  bool patient_ = false;
  bool stalled_ = false;
};

}  // namespace hvd
