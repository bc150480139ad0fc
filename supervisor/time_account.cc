#include "supervisor/time_account.h"

#include <algorithm>

namespace hvd {

namespace {

Duration& of(SpentTimes& times, Spent spent) {
  return times[static_cast<size_t>(spent)];
}

void add(SpentTimes& to, const SpentTimes& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

}  // namespace

const char* spent_name(Spent spent) {
  constexpr const char* kNames[] = {"connecting", "proving",   "preparing", "starting",   "working",
                                    "redoing",    "detecting", "stopping",  "backing off"};
  return kNames[static_cast<size_t>(spent)];
}

void TimeAccount::start(uint64_t reached, Time now) {
  start_ = now_ = now;
  high_ = saved_ = reached;
}

void TimeAccount::advance(Time now) {
  const Duration time = now - now_;
  now_ = now;
  of(current_.spent, on_) += time;
  if (on_ == Spent::working) unsaved_ += time;
}

void TimeAccount::enter(Spent spent) {
  if (running_) return;
  if (ended_ && spent != Spent::stopping) close();
  on_ = spent;
}

void TimeAccount::close() {
  closed_.push_back(std::move(current_));
  current_ = {};
  ended_ = false;
}

void TimeAccount::attempt_begins(uint32_t number, uint64_t from_step, bool from_memory) {
  if (ended_) close();
  if (!closed_.empty()) {
    AttemptAccount& last = closed_.back();
    last.steps_lost = last.last_step - std::min(last.last_step, from_step);
  }
  current_.number = number;
  current_.first_step = from_step;
  current_.from_memory = from_memory;
  current_.began = now_ - start_;
  saved_ = std::min(saved_, high_);
  high_before_ = high_;
  running_ = true;
  on_ = Spent::starting;
}

void TimeAccount::reached(uint64_t step) {
  if (!running_ || step <= current_.first_step) return;
  any_step_ = true;
  current_.last_step = std::max(current_.last_step, step);
  high_ = std::max(high_, step);
  on_ = current_.last_step < high_before_ ? Spent::redoing : Spent::working;
}

void TimeAccount::saved(uint64_t step) {
  if (step <= saved_) return;
  const uint64_t unsaved = high_ - std::min(saved_, high_);
  const uint64_t left = high_ - std::min(step, high_);
  unsaved_ = unsaved == 0 ? Duration::zero()
                          : Duration(static_cast<int64_t>(static_cast<double>(unsaved_.count()) *
                                                          static_cast<double>(left) /
                                                          static_cast<double>(unsaved)));
  saved_ = step;
}

void TimeAccount::attempt_ends(const std::string& kind, const std::string& ending,
                               Duration unnoticed) {
  if (!running_) return;
  const Duration late = std::min(unnoticed, of(current_.spent, on_));
  of(current_.spent, on_) -= late;
  of(current_.spent, Spent::detecting) += late;
  if (on_ == Spent::working) unsaved_ -= std::min(late, unsaved_);
  current_.kind = kind;
  current_.ending = ending;
  current_.ended = now_ - start_;
  running_ = false;
  ended_ = true;
  on_ = Spent::stopping;
}

RunAccount TimeAccount::account(bool lost) const {
  RunAccount run;
  run.attempts = closed_;
  if (current_.number > 0) run.attempts.push_back(current_);
  for (const AttemptAccount& attempt : closed_) add(run.spent, attempt.spent);
  add(run.spent, current_.spent);
  run.wall = now_ - start_;
  if (lost) {
    run.steps_lost = high_ - std::min(saved_, high_);
    run.unsaved = unsaved_;
  }
  const Duration kept = of(run.spent, Spent::working) - run.unsaved;
  if (any_step_ && run.wall > Duration::zero()) {
    run.goodput = static_cast<double>(kept.count()) / static_cast<double>(run.wall.count());
  }
  return run;
}

}  // namespace hvd
