#include "comm/patience.h"

namespace hvd {

std::string name_ranks(const std::vector<uint32_t>& ranks) {
  constexpr size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t named = ranks.size() <= kNamed ? ranks.size() : kNamed;
  for (size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += " and " + std::to_string(ranks.size() - named) + " more";
  return text;
}

Patience::Patience(const WaitLimits& limits, uint32_t rank, std::string what)
    : limits_(limits), rank_(rank), what_(std::move(what)), start_(now()) {
  if (limits_.limit) end_ = start_ + *limits_.limit;
  if (limits_.warn) next_warning_ = start_ + limits_.first_warning;
}

Outcome Patience::check(const std::function<std::string()>& whom) {
  const Time at = now();
  if (end_ && at >= *end_) {
    return {HVD_TIMED_OUT, "rank " + std::to_string(rank_) + " waited " +
                               format_duration(*limits_.limit) + " in " + what_ + " for " + whom() +
                               ", the limit"};
  }
  if (next_warning_ && at >= *next_warning_) {
    limits_.warn("rank " + std::to_string(rank_) + " has waited " + format_duration(at - start_) +
                 " in " + what_ + " for " + whom());
    next_warning_ = at + (at - start_);
  }
  return {};
}

}  // namespace hvd
