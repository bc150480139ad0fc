#include "supervisor/agent/open_news.h"

#include <algorithm>

namespace hvd {

namespace {

bool is_of_the_host(const FromAgent& message) {
  return std::holds_alternative<Leaving>(message);
}

// The newer one of its kind takes its place.
bool replaces(const FromAgent& newer, const FromAgent& older) {
  if (newer.index() != older.index()) return false;
  if (const auto* m = std::get_if<ShardSaved>(&newer)) {
    const auto& old = std::get<ShardSaved>(older);
    return m->shard.rank == old.shard.rank && m->step == old.step;
  }
  if (const auto* m = std::get_if<ShardKept>(&newer)) {
    const auto& old = std::get<ShardKept>(older);
    return m->shard.rank == old.shard.rank && m->step == old.step;
  }
  if (const auto* m = std::get_if<StateLoaded>(&newer)) {
    return m->rank == std::get<StateLoaded>(older).rank;
  }
  if (const auto* m = std::get_if<ForeignCheckpoint>(&newer)) {
    return m->rank == std::get<ForeignCheckpoint>(older).rank;
  }
  return false;
}

bool is_kept(const FromAgent& message) {
  return std::visit(
      [](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        return std::is_same_v<M, WorkerStarted> || std::is_same_v<M, WorkerEnded> ||
               std::is_same_v<M, WorkerAborted> || std::is_same_v<M, AttemptStopped> ||
               std::is_same_v<M, ExchangeBlob> || std::is_same_v<M, StateLoaded> ||
               std::is_same_v<M, ShardSaved> || std::is_same_v<M, ShardKept> ||
               std::is_same_v<M, ForeignCheckpoint> || std::is_same_v<M, Leaving>;
      },
      message);
}

}  // namespace

void OpenNews::sent(const FromAgent& message) {
  if (!is_kept(message)) return;
  if (const auto* blob = std::get_if<ExchangeBlob>(&message)) open_rounds_.insert(blob->round);
  if (const auto* saved = std::get_if<ShardSaved>(&message)) open_saves_.insert(saved->step);
  if (const auto* kept = std::get_if<ShardKept>(&message)) open_keeps_.insert(kept->step);
  load_is_open_ |= std::holds_alternative<StateLoaded>(message);
  std::erase_if(kept_, [&](const FromAgent& older) { return replaces(message, older); });
  kept_.push_back(message);
}

bool OpenNews::heard(const ToAgent& message) {
  if (std::holds_alternative<StartAttempt>(message)) {
    std::erase_if(kept_, [](const FromAgent& one) { return !is_of_the_host(one); });
    open_saves_.clear();
    open_keeps_.clear();
    open_rounds_.clear();
    load_is_open_ = false;
  }
  if (const auto* result = std::get_if<ExchangeResult>(&message)) {
    return open_rounds_.erase(result->round) > 0;
  }
  if (std::holds_alternative<LoadResult>(message)) return std::exchange(load_is_open_, false);
  if (const auto* result = std::get_if<SaveResult>(&message)) {
    return answered<ShardSaved>(result->step, open_saves_);
  }
  if (const auto* result = std::get_if<KeepResult>(&message)) {
    return answered<ShardKept>(result->step, open_keeps_);
  }
  return true;
}

template <class Report>
bool OpenNews::answered(uint64_t step, std::set<uint64_t>& open) {
  if (open.erase(step) == 0) return false;
  std::erase_if(kept_, [&](const FromAgent& one) {
    const auto* report = std::get_if<Report>(&one);
    return report != nullptr && report->step != step && open.count(report->step) == 0;
  });
  return true;
}

}  // namespace hvd
