// Rules of the user about failures: what a failure must look like, and what is then done in place
// of what would be done. Pure. The first rule that fits counts.
//
//   exit CODE | signal NAME | memory | log REGEX | host NAME | stall | host-lost
//   stop | restart | exclude-host | ignore-budget
//
// Written "exit 77: stop". `memory`: killed by the kernel for want of it. `log`: an extended POSIX
// regular expression found in the last lines of the rank's stderr. `host`: any failure on it.
// `host-lost`: its agent ended, it fell silent or its connection broke.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hvd {

struct Rule {
  enum class On { exit_code, signal, memory, log, host, stall, host_lost } on = On::exit_code;
  // stop: the job ends. restart: relaunch, though it be a crash loop or the job would not go on.
  // exclude_host: that, and the host holds no ranks any more if others can. ignore_budget: relaunch
  // at no cost.
  enum class Action { stop, restart, exclude_host, ignore_budget } action = Action::stop;
  int number = 0;       // exit code or signal
  std::string pattern;  // regular expression or name of a host
  std::string text;     // as the user wrote it
};

// The error says what was expected.
Result<Rule> parse_rule(const std::string& text);

// What rules look at.
struct FailureTraits {
  int exit_code = 0;  // 0: none
  int signal = 0;
  bool memory = false, stall = false, host_lost = false;
  std::string host, last_lines;
};

// Null: no rule fits.
const Rule* find_rule(const std::vector<Rule>& rules, const FailureTraits& failure);

}  // namespace hvd
