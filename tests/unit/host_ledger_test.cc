// What a run holds against its hosts, and what relaunches it may still have.
#include "supervisor/host_ledger.h"

#include <doctest/doctest.h>

#include "launcher/host_memory.h"
#include "supervisor/restart_budget.h"

using namespace hvd;
using namespace std::chrono_literals;

TEST_CASE("i4: a host that failed cools down, for longer each time, and is excluded at the limit") {
  HostLedger ledger(2, 5);
  Time now{1000s};
  ledger.failed(1, now);
  CHECK(ledger.usable(1, now));
  for (const Duration cooling : {10s, 20s, 40s}) {
    ledger.failed(1, now);
    CHECK_FALSE(ledger.usable(1, now));
    CHECK(ledger.cools_until(1) == now + cooling);
    CHECK_FALSE(ledger.usable(1, now + cooling - 1ms));
    now += cooling;
    CHECK(ledger.usable(1, now));
    CHECK(ledger.usable(0, now));
  }
  ledger.failed(1, now);
  CHECK(ledger.failures(1) == 5);
  CHECK(ledger.excluded(1));
  CHECK_FALSE(ledger.usable(1, now + 24h));
  CHECK(ledger.cools_until(1) == now + 5min);
  CHECK_FALSE(ledger.excluded(0));
}

TEST_CASE("i4: without a limit hosts are always used, with a high one they cool for 5 minutes") {
  HostLedger never(1, 0), often(1, 1000);
  for (int i = 0; i < 50; ++i) {
    never.failed(0, Time{1s});
    often.failed(0, Time{1s});
  }
  CHECK(never.usable(0, Time{1s}));
  CHECK(often.cools_until(0) == Time{301s});
  CHECK_FALSE(often.excluded(0));
}

TEST_CASE("i4: ten good minutes and a host begins anew") {
  HostLedger ledger(1, 5);
  Time now{0s};
  for (int i = 0; i < 20; ++i) {
    now += 601s;
    ledger.failed(0, now);
    CHECK(ledger.usable(0, now));
  }
  ledger.failed(0, now + 600s);
  CHECK_FALSE(ledger.usable(0, now + 600s));
}

TEST_CASE("failures of ranks are counted while they are on one host") {
  HostLedger ledger(3, 5);
  CHECK(ledger.rank_failed(1) == 1);
  CHECK(ledger.rank_failed(1) == 2);
  CHECK(ledger.rank_failed(2) == 1);
  CHECK(ledger.rank_failed(1) == 1);
  CHECK(ledger.usable(1, Time{0s}));
}

TEST_CASE("i6: a budget is of each kind of cause, or of all together, and links cost nothing") {
  using Kind = RestartBudget::Kind;
  RestartBudget budget;
  CHECK(budget.take(Kind::program, 2, false));
  CHECK(budget.take(Kind::program, 2, false));
  CHECK_FALSE(budget.take(Kind::program, 2, false));
  CHECK(budget.take(Kind::host, 2, false));
  CHECK_FALSE(budget.take(Kind::host, 2, true));
  for (int i = 0; i < 100; ++i) CHECK(budget.take(Kind::link, 0, true));
  CHECK(budget.tries() == 103);
  budget.refill();
  CHECK(budget.tries() == 0);
  CHECK(budget.take(Kind::stall, 1, true));
  CHECK_FALSE(budget.take(Kind::stall, 0, false));
}

TEST_CASE("what earlier runs held against hosts is told of the last day, and of the job's hosts") {
  constexpr int64_t kDay = 24 * 60 * 60;
  std::string text = host_failure_line({1000, "h1", "h1 is old news"});
  text += "no line\n{\"time\": \"x\"}\n[1]\n\n{\"time\": 5000, \"host\": 7, \"reason\": \"\"}\n";
  text += host_failure_line({2000 + kDay, "h2", "h2 fell silent"});
  text += host_failure_line({3000 + kDay, "h2", "h2: its agent\nended \xff"});
  text += host_failure_line({4000 + kDay, "h3", "h3 fell silent"});
  text += host_failure_line({9000 + kDay, "h1", "the future"});
  text += "{\"time\": 1";
  const auto failures = recent_failures(text, 5000 + kDay);
  CHECK(failures.size() == 3);
  const auto texts = describe_failures(failures, {"h1", "h2"});
  REQUIRE(texts.size() == 1);
  CHECK(texts[0].starts_with("h2 failed 2 times in runs of the last day, last at 1970-01-0"));
  CHECK(texts[0].find(": h2: its agent\nended ") != std::string::npos);
  CHECK(describe_failures(failures, {"h3"}).at(0).starts_with("h3 failed once in runs"));
}
