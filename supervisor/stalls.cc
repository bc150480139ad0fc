#include "supervisor/stalls.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace hvd {

namespace {

using Ranks = std::map<uint32_t, RankView>;

std::optional<Suspect> first_of(const Ranks& ranks, const std::function<bool(const RankView&)>& is,
                                const std::string& why) {
  std::optional<Suspect> suspect;
  for (const auto& [rank, view] : ranks) {
    if (!is(view)) continue;
    if (suspect) {
      ++suspect->others;
    } else {
      suspect = Suspect{rank, why, 0};
    }
  }
  return suspect;
}

bool stopped(const RankView& view) {
  return view.state == 'T' || view.state == 't';
}

// Ranks whose count is below the highest one.
std::optional<Suspect> behind(const Ranks& ranks, uint64_t RankView::*count,
                              const std::string& what) {
  const auto less = [&](const auto& a, const auto& b) { return a.second.*count < b.second.*count; };
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end(), less);
  if (least == ranks.end() || least->second.*count == most->second.*count) return std::nullopt;
  const uint64_t lowest = least->second.*count;
  return first_of(
      ranks, [&](const RankView& view) { return view.*count == lowest; },
      what + " " + std::to_string(lowest) + " where others have reached " +
          std::to_string(most->second.*count));
}

}  // namespace

std::optional<Suspect> find_suspect(const Ranks& ranks, uint64_t stall_ns) {
  if (auto suspect = first_of(ranks, stopped, "is stopped (state T)")) return suspect;
  if (auto suspect = behind(ranks, &RankView::begun, "has begun collective")) return suspect;
  if (auto suspect = behind(ranks, &RankView::step, "is at step")) return suspect;
  const auto stalls = [&](const RankView& view) { return view.quiet_ns >= stall_ns; };
  const auto only = first_of(ranks, stalls, ranks.size() > 1 ? "makes none while others do" : "");
  return only && only->others == 0 ? only : std::nullopt;
}

}  // namespace hvd
