#include "supervisor/placement.h"

#include <algorithm>
#include <cstddef>
#include <string>

namespace hvd {

namespace {

// "h1: 2, h2: 4", at most a few hosts of many.
std::string slots_of(const std::vector<Host>& hosts) {
  constexpr size_t kShown = 8;
  std::string text;
  size_t shown = 0, holding = 0;
  for (const Host& host : hosts) {
    if (host.spare) continue;
    if (++holding > kShown) continue;
    text += (shown++ ? ", " : "") + host.name + ": " + std::to_string(host.slots);
  }
  if (holding > kShown) text += " and " + std::to_string(holding - kShown) + " more hosts";
  return text;
}

// Cross rank and cross size follow from which hosts have which local rank.
void number_across(Placement& placement) {
  std::vector<uint32_t> across;  // by local rank: hosts seen that have it
  for (HostPlaces& host : placement) {
    if (across.size() < host.places.size()) across.resize(host.places.size());
    for (Place& place : host.places) place.cross_rank = across[place.local_rank]++;
  }
  for (HostPlaces& host : placement) {
    for (Place& place : host.places) place.cross_size = across[place.local_rank];
  }
}

}  // namespace

Result<Placement> place(const std::vector<Host>& hosts, uint32_t size) {
  HVD_CHECK(size > 0);
  uint64_t slots = 0;
  for (const Host& host : hosts) slots += host.spare ? 0 : host.slots;
  if (slots == 0) return Error{"no host can hold a rank: every one of them is a spare"};
  if (size > slots) {
    return Error{std::to_string(size) + " ranks do not fit: the hosts have " +
                 std::to_string(slots) + (slots == 1 ? " slot (" : " slots (") + slots_of(hosts) +
                 ")"};
  }
  Placement placement;
  uint32_t rank = 0;
  for (uint32_t index = 0; index < hosts.size() && rank < size; ++index) {
    const Host& host = hosts[index];
    if (host.spare || host.slots == 0) continue;
    HostPlaces places{index, static_cast<uint32_t>(placement.size()), {}};
    const uint32_t count = std::min(host.slots, size - rank);
    for (uint32_t local = 0; local < count; ++local) {
      places.places.push_back(Place{rank++, local, 0, 0});
    }
    placement.push_back(std::move(places));
  }
  number_across(placement);
  return placement;
}

Placement replace_host(const Placement& placement, uint32_t lost, uint32_t newcomer) {
  Placement replaced = placement;
  bool found = false;
  for (HostPlaces& host : replaced) {
    HVD_CHECK(host.host != newcomer);
    if (host.host != lost) continue;
    host.host = newcomer;
    found = true;
  }
  HVD_CHECK(found);
  return replaced;
}

}  // namespace hvd
