// CKPT_DIR/job.toml: how to go on with a job from nothing but this file. It holds the command, the
// directory, the hosts, counts, limits, and the values of a few variables (PATH,
// LD_LIBRARY_PATH, PYTHONPATH, VIRTUAL_ENV, CONDA_*, and those given by -x NAME=VALUE); of
// variables passed by -x NAME only the names. No secret of hvdlaunch's own. To be written with
// mode 0600, and to be read only if it is the reader's own and nobody else can write it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.h"
#include "supervisor/job.h"

namespace hvd {

inline constexpr size_t kLongestJobFile = 16u << 20;  // bytes

// Whether the variable's value is kept, though nobody named it.
bool is_kept_variable(std::string_view name);

// The file's text. `version` is this program's.
std::string job_file_text(const Job& job, std::string_view version);

// The job as it was, strictly: every field must be there and fit. `forwarded` holds the kept
// variables only; `set` those with a value; id, secret and what is known of checkpoints are empty.
// Errors begin with "path:line:column: ".
Result<Job> parse_job_file(std::string_view text, const std::string& path);

}  // namespace hvd
