#include "launcher/line_folder.h"

#include <functional>
#include <utility>

namespace hvd {

void LineFolder::put(uint32_t rank, std::string_view prefix, std::string_view line, Time now) {
  const size_t hash = std::hash<std::string_view>()(line);
  const auto known = last_.find(rank);
  const auto behind = known == last_.end() ? groups_.begin() : std::next(known->second);
  auto group = behind;
  for (int seen = 0; group != groups_.end(); ++group, ++seen) {
    if (group->hash == hash && group->text == line) break;
    if (seen == kLookAhead) group = std::prev(groups_.end());
  }
  if (group == groups_.end()) {
    // It waits no longer than what it stands in front of.
    const Time since = behind == groups_.end() ? now : behind->since;
    group = groups_.insert(behind, {hash, std::string(line), std::string(prefix), {}, since});
    bytes_ += cost(*group);
  }
  group->ranks.push_back(rank);
  bytes_ += sizeof(rank);
  last_[rank] = group;
}

std::optional<LineFolder::Folded> LineFolder::take(Time now, bool all) {
  if (groups_.empty()) return std::nullopt;
  Group& group = groups_.front();
  const bool complete = group.ranks.size() >= ranks_;
  if (!all && !complete && bytes_ <= kMost && now < group.since + kWindow) return std::nullopt;
  for (const uint32_t rank : group.ranks) {
    const auto known = last_.find(rank);
    if (known != last_.end() && known->second == groups_.begin()) last_.erase(known);
  }
  bytes_ -= cost(group);
  Folded folded{std::move(group.text), std::move(group.prefix), group.ranks.size()};
  groups_.pop_front();
  return folded;
}

size_t LineFolder::cost(const Group& group) {
  return sizeof(Group) + group.prefix.size() + group.text.size() +
         group.ranks.size() * sizeof(uint32_t);
}

std::optional<Time> LineFolder::deadline() const {
  if (groups_.empty()) return std::nullopt;
  return groups_.front().since + kWindow;
}

}  // namespace hvd
