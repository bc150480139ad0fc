// Rules of the user about failures.
#include "supervisor/rules.h"

#include <doctest/doctest.h>

#include <csignal>

using namespace hvd;

TEST_CASE("rules are read, and bad ones say what was expected") {
  const auto rule = parse_rule("exit 77: stop");
  REQUIRE(rule);
  CHECK(rule->on == Rule::On::exit_code);
  CHECK(rule->number == 77);
  CHECK(rule->action == Rule::Action::stop);
  CHECK(parse_rule("signal KILL:restart")->number == SIGKILL);
  CHECK(parse_rule("signal SIGSEGV: restart")->number == SIGSEGV);
  CHECK(parse_rule(" signal 9 : exclude-host ")->number == SIGKILL);
  // The last colon counts.
  const auto log = parse_rule("log CUDA error: (out of memory|device): exclude-host");
  REQUIRE(log);
  CHECK(log->pattern == "CUDA error: (out of memory|device)");
  CHECK(log->action == Rule::Action::exclude_host);
  CHECK(parse_rule("host h1: ignore-budget")->pattern == "h1");
  for (const char* plain : {"memory", "stall", "host-lost"}) {
    CHECK(parse_rule(std::string(plain) + ": stop"));
  }
  for (const auto& [text, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "expected a colon and stop"},
           {"exit 77", "expected a colon and stop"},
           {"exit 77: halt", "expected a colon and stop"},
           {"exit 0: stop", "expected an exit code from 1 to 255"},
           {"exit 256: stop", "expected an exit code from 1 to 255"},
           {"exit 7x: stop", "expected an exit code from 1 to 255"},
           {"exit: stop", "expected an exit code from 1 to 255"},
           {"signal FOO: stop", "expected the name of a signal"},
           {"log (: stop", "its regular expression cannot be read: "},
           {"log : stop", "expected something behind log"},
           {"memory 5: stop", "expected exit CODE, signal NAME"},
           {": stop", "expected exit CODE, signal NAME"}}) {
    CAPTURE(text);
    const auto bad = parse_rule(text);
    REQUIRE_FALSE(bad);
    CHECK(bad.error().text.find(part) != std::string::npos);
  }
}

TEST_CASE("the first rule that fits counts") {
  std::vector<Rule> rules;
  for (const char* text : {"exit 77: stop", "signal KILL: restart", "memory: exclude-host",
                           "log ^NaN in step [0-9]+$: stop", "host h2: ignore-budget",
                           "stall: restart", "host-lost: exclude-host"}) {
    rules.push_back(*parse_rule(text));
  }
  const auto found = [&](const FailureTraits& failure) -> std::string {
    const Rule* rule = find_rule(rules, failure);
    return rule == nullptr ? "" : rule->text;
  };
  FailureTraits failure;
  failure.host = "h1";
  CHECK(found(failure).empty());
  failure.exit_code = 7;
  CHECK(found(failure).empty());
  failure.last_lines = "all is well\nNaN in step 12\ngood bye";
  CHECK(found(failure) == "log ^NaN in step [0-9]+$: stop");
  failure.last_lines = "no NaN in step 12\n";
  CHECK(found(failure).empty());
  failure.host = "h2";
  CHECK(found(failure) == "host h2: ignore-budget");
  failure.exit_code = 77;
  CHECK(found(failure) == "exit 77: stop");
  FailureTraits killed;
  killed.memory = true;
  CHECK(found(killed) == "memory: exclude-host");
  killed.signal = SIGKILL;
  CHECK(found(killed) == "signal KILL: restart");
  FailureTraits lost;
  lost.host_lost = true;
  CHECK(found(lost) == "host-lost: exclude-host");
  FailureTraits stalled;
  stalled.stall = true;
  CHECK(found(stalled) == "stall: restart");
}
