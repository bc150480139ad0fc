// Where the time of a run goes.
#include "supervisor/time_account.h"

#include <doctest/doctest.h>

using namespace hvd;
using namespace std::chrono_literals;

namespace {

Duration of(const SpentTimes& times, Spent spent) {
  return times[static_cast<size_t>(spent)];
}

struct Run {
  TimeAccount times;
  Time at{1000s};
  explicit Run(uint64_t reached = 0) { times.start(reached, at); }
  void pass(Duration time) { times.advance(at += time); }
};

// A second each of connecting and proving, then an attempt: 2 s to its first step.
void begin(Run& run, uint32_t number, uint64_t from) {
  run.times.enter(Spent::connecting);
  run.pass(1s);
  run.times.enter(Spent::proving);
  run.pass(1s);
  run.times.attempt_begins(number, from);
  run.pass(2s);
  run.times.reached(from + 1);
}

}  // namespace

TEST_CASE("a run without faults is all work but for its start") {
  Run run;
  begin(run, 1, 0);
  run.pass(96s);
  run.times.reached(100);
  run.times.attempt_ends("", "", 0s);
  const RunAccount account = run.times.account(false);
  REQUIRE(account.attempts.size() == 1);
  CHECK(account.wall == 100s);
  CHECK(of(account.spent, Spent::starting) == 2s);
  CHECK(of(account.spent, Spent::working) == 96s);
  CHECK(*account.goodput == doctest::Approx(0.96));
  CHECK(account.steps_lost == 0);
  CHECK(account.attempts[0].began == 2s);
  CHECK(account.attempts[0].ended == 100s);
}

TEST_CASE("what a failure cost is told by phase, and every second is somewhere") {
  Run run;
  begin(run, 1, 0);
  run.pass(50s);
  run.times.reached(50);
  run.times.saved(40);
  run.pass(10s);
  run.times.attempt_ends("host-silent", "h2 fell silent", 10s);
  run.times.attempt_ends("exited", "a consequence", 0s);
  run.times.enter(Spent::stopping);
  run.pass(3s);
  run.times.enter(Spent::backing_off);
  run.pass(4s);
  begin(run, 2, 40);
  run.pass(5s);
  run.times.reached(49);  // redone so far
  run.pass(5s);
  run.times.reached(51);
  run.pass(20s);
  run.times.reached(70);
  run.times.attempt_ends("", "", 0s);
  const RunAccount account = run.times.account(false);
  REQUIRE(account.attempts.size() == 2);
  const AttemptAccount& first = account.attempts[0];
  CHECK(first.kind == "host-silent");
  CHECK(first.ending == "h2 fell silent");
  CHECK(first.steps_lost == 10);
  CHECK(of(first.spent, Spent::working) == 50s);
  CHECK(of(first.spent, Spent::detecting) == 10s);
  CHECK(of(first.spent, Spent::stopping) == 3s);
  const AttemptAccount& second = account.attempts[1];
  CHECK(second.first_step == 40);
  CHECK(second.last_step == 70);
  CHECK(of(second.spent, Spent::backing_off) == 4s);
  CHECK(of(second.spent, Spent::connecting) == 1s);
  CHECK(of(second.spent, Spent::redoing) == 10s);
  CHECK(of(second.spent, Spent::working) == 20s);
  Duration sum{};
  for (const Duration one : account.spent) sum += one;
  CHECK(sum == account.wall);
  CHECK(*account.goodput == doctest::Approx(70.0 / 105.0));
}

TEST_CASE("work that no checkpoint has is lost when the job fails, and kept when it ends well") {
  Run run;
  begin(run, 1, 0);
  run.pass(50s);
  run.times.reached(51);
  run.times.saved(51);
  run.pass(50s);
  run.times.reached(101);
  run.times.saved(76);  // half of them
  run.times.attempt_ends("exited", "rank 0 ended", 0s);
  CHECK(run.times.account(false).unsaved == 0s);
  CHECK(*run.times.account(false).goodput == doctest::Approx(100.0 / 104.0));
  const RunAccount lost = run.times.account(true);
  CHECK(lost.steps_lost == 25);
  CHECK(lost.unsaved == 25s);
  CHECK(*lost.goodput == doctest::Approx(75.0 / 104.0));
}

TEST_CASE("a run that goes on from another redoes what that one did, and no steps are no work") {
  Run run(100);
  begin(run, 5, 80);
  run.pass(10s);
  run.times.reached(90);
  run.pass(10s);
  run.times.attempt_ends("user", "stopped", 0s);
  const RunAccount account = run.times.account(true);
  CHECK(of(account.spent, Spent::redoing) == 20s);
  CHECK(*account.goodput == 0.0);
  Run silent;
  silent.times.attempt_begins(1, 0);
  silent.pass(10s);
  silent.times.attempt_ends("", "", 0s);
  CHECK_FALSE(silent.times.account(false).goodput);
}
