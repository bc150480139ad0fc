// The history of a job as the policy saw it: one JSON line per event and action, with the attempt
// and the time. Output, beats and their answers are left out.
#pragma once

#include <string>
#include <vector>

#include "base/time.h"
#include "supervisor/policy.h"

namespace hvd {

// A whole line, or empty for what is not logged. `at` is the time since the job's start.
// The first line: whose log it is, and when its time 0 was, by the wall clock and in seconds of
// CLOCK_BOOTTIME.
std::string opening_line(const std::string& job, Time started);
std::string log_line(const Event& event, Duration at);
std::string log_line(const Action& action, Duration at);

// The end of a job as JSON: exit code, who it came from, cause, attempts, where the time went.
// `told`: what the user reads of it.
std::string report_json(const Job& job, const Finish& finish, Duration wall,
                        const std::vector<std::string>& told);

}  // namespace hvd
