// Where the time of a run went, attempt by attempt. Pure: the time, phases and steps go in.
//
// Time is gained while ranks do steps that nobody did before; all else is lost to something. Steps
// that a failure undid count once: doing them again is lost. Those that no checkpoint has when the
// job ends by a failure are lost with the time they took.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"

namespace hvd {

// What a moment of a run is spent on.
enum class Spent : uint8_t {
  connecting,
  proving,
  preparing,
  starting,   // from the start of ranks to their first step
  working,    // at steps that are new
  redoing,    // steps that were done before
  detecting,  // from the last sign of life to the verdict
  stopping,
  backing_off,
  kCount
};
using SpentTimes = std::array<Duration, static_cast<size_t>(Spent::kCount)>;
const char* spent_name(Spent spent);  // "backing off"

struct AttemptAccount {
  uint32_t number = 0;
  Duration began{}, ended{};  // its ranks, since the start of the run
  uint64_t first_step = 0;    // that it went on from; 0: the beginning
  bool from_memory = false;   // the agents had that in memory
  uint64_t last_step = 0;     // that it reached; 0: none was reported
  uint64_t steps_lost = 0;    // that the next attempt had to redo
  std::string kind, ending;   // of the cause; empty: all ranks ended with 0
  SpentTimes spent{};         // on it, from the end of the one before
};

struct RunAccount {
  std::vector<AttemptAccount> attempts;
  SpentTimes spent{};
  Duration wall{};
  uint64_t steps_lost = 0;        // that no checkpoint has, at the end
  Duration unsaved{};             // the work on them
  std::optional<double> goodput;  // share of the wall time; none if no step was reported
};

class TimeAccount {
 public:
  // `reached`: the highest step of runs before.
  void start(uint64_t reached, Time now);
  // The time until now is spent; all below happens at that moment.
  void advance(Time now);
  // On what the time is spent from now on. While an attempt runs, steps decide.
  void enter(Spent spent);
  void attempt_begins(uint32_t number, uint64_t from_step, bool from_memory = false);
  void reached(uint64_t step);
  // A checkpoint of this step is whole.
  void saved(uint64_t step);
  // The verdict about something that began `unnoticed` ago. Later ones on the same attempt are
  // ignored.
  void attempt_ends(const std::string& kind, const std::string& ending, Duration unnoticed);
  // With `lost`, what no checkpoint has is.
  RunAccount account(bool lost) const;

 private:
  void close();

  Time start_{}, now_{};
  Spent on_ = Spent::connecting;
  bool running_ = false, ended_ = false;  // the current attempt
  AttemptAccount current_;
  std::vector<AttemptAccount> closed_;
  uint64_t high_ = 0;         // step that any attempt reached
  uint64_t high_before_ = 0;  // those before the current one
  uint64_t saved_ = 0;
  bool any_step_ = false;
  Duration unsaved_{};  // work on the steps from saved_ to high_
};

}  // namespace hvd
