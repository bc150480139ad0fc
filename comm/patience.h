// How long one wait may last, and when it is time to say for whom it lasts so long.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "comm/outcome.h"

namespace hvd {

struct WaitLimits {
  std::optional<Duration> limit;                     // none: as long as all peers live
  Duration first_warning = std::chrono::minutes(1);  // then at doubling intervals
  std::function<void(const std::string&)> warn;      // gets one whole line; none: silent
};

// "rank 2", "ranks 2, 3 and 7".
std::string name_ranks(const std::vector<uint32_t>& ranks);

// One wait, from its construction on.
class Patience {
 public:
  // `what` completes "rank 0 waits in ...".
  Patience(const WaitLimits& limits, uint32_t rank, std::string what);

  const std::string& what() const { return what_; }
  // When check() is to be called at the latest.
  std::optional<Time> deadline() const { return earlier(end_, next_warning_); }
  // Warns if it is time to, and fails if the limit has passed. `whom` names who is waited for.
  Outcome check(const std::function<std::string()>& whom);

 private:
  const WaitLimits& limits_;
  uint32_t rank_;
  std::string what_;
  Time start_;
  std::optional<Time> end_, next_warning_;
};

}  // namespace hvd
