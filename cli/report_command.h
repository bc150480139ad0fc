// `hvdlaunch report RUN_DIR`: what became of a job, told again from its history.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace hvd {

struct ReportCommand {
  std::string run;    // a job's id, or the folder of its history
  bool json = false;  // report.json as it is
};

// `words` follow the command word.
Result<ReportCommand> parse_report(const std::vector<std::string>& words);

struct ReportShown {
  int code = 0;      // 0; 3 when there is no history of that job
  std::string text;  // for standard output
  std::string error;
};
// Of a job that left no report, since it still runs or its launcher was killed, the event log says
// what happened so far.
ReportShown show_report(const ReportCommand& command);

}  // namespace hvd
