// What the user reads at the end of a job: what failed, what followed, how to go on, and who spoke.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "supervisor/policy.h"

namespace hvd {

// Texts for the user, in order; each may have several lines. Verbosity as in LaunchSettings.
std::vector<std::string> report_texts(const Job& job, const Finish& finish, int verbosity);

}  // namespace hvd
