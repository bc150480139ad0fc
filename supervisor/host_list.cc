#include "supervisor/host_list.h"

#include <algorithm>

namespace hvd {

using namespace std::chrono_literals;

namespace {
constexpr Duration kStillness = 5s;
constexpr Duration kLongestStillness = 5min;
constexpr Duration kForgotten = 1min;

std::string key_of(const Host& host) {
  return host.name + " " + std::to_string(host.port);
}
}  // namespace

HostList::HostList(const std::vector<Host>& hosts) {
  for (const Host& host : hosts) {
    Entry& entry = entries_[key_of(host)];
    entry.host = host;
    entry.believed = entry.printed = true;
  }
}

void HostList::see(const std::vector<Host>& printed, Time now) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < printed.size(); ++i) places[key_of(printed[i])] = i;
  for (const auto& [key, place] : places) {
    Entry& entry = entries_[key];
    entry.host = printed[place];
    entry.place = place;
  }
  for (auto& [key, entry] : entries_) {
    const bool there = places.contains(key);
    if (there == entry.printed) continue;
    const bool again = entry.changed && now - *entry.changed < kForgotten;
    entry.stillness =
        again ? std::min<Duration>(entry.stillness * 2, kLongestStillness) : kStillness;
    entry.changed = now;
    entry.printed = there;
  }
  std::erase_if(entries_, [&](const auto& one) {
    const Entry& entry = one.second;
    return !entry.printed && !entry.believed && now - *entry.changed > kLongestStillness;
  });
}

HostList::Change HostList::settle(Time now) {
  std::vector<const Entry*> come;
  Change change;
  for (auto& [key, entry] : entries_) {
    if (entry.printed == entry.believed || now < *entry.changed + entry.stillness) continue;
    entry.believed = entry.printed;
    if (entry.believed) {
      come.push_back(&entry);
    } else {
      change.gone.push_back(entry.host);
    }
  }
  std::sort(come.begin(), come.end(),
            [](const Entry* a, const Entry* b) { return a->place < b->place; });
  for (const Entry* entry : come) change.come.push_back(entry->host);
  return change;
}

std::optional<Time> HostList::deadline() const {
  std::optional<Time> next;
  for (const auto& [key, entry] : entries_) {
    if (entry.printed != entry.believed) next = earlier(next, *entry.changed + entry.stillness);
  }
  return next;
}

}  // namespace hvd
