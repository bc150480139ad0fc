// What a worker's environment says about its job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/time.h"

namespace hvd {

struct Settings {
  std::string agent_socket;  // empty: not under hvdlaunch
  std::string job;
  uint32_t rank = 0, attempt = 0;
  std::string checkpoint_dir, resume_from;
  std::optional<uint64_t> resume_step;
  std::optional<Duration> limit;  // of each collective, save and load
  Duration init_limit = std::chrono::minutes(1);
  std::string backend;  // empty: ring alone
};

// The error names the variable.
Result<Settings> settings_from_environment();

}  // namespace hvd
