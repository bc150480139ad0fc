// Lists of hosts as -H takes them, and choices among them: the list, then lines for --include and
// --exclude.
#include "launcher/host_choice.h"
#include "launcher/hosts.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

namespace {

// The list that means these hosts.
std::string printed(const std::vector<Host>& hosts) {
  std::string list;
  for (const Host& host : hosts) {
    if (!list.empty()) list += ',';
    if (!host.user.empty()) list += host.user + '@';
    list += is_ipv6(host.name) ? '[' + host.name + ']' : host.name;
    if (host.slots_given) list += ':' + std::to_string(host.slots);
    if (host.slots_auto) list += ":auto";
  }
  return list;
}

std::vector<HostChoice> choices(std::string_view text, const char* place) {
  std::vector<HostChoice> all;
  for (const std::string_view one : split_host_list(text)) {
    if (!one.empty()) all.push_back({std::string(one), place});
  }
  return all;
}

void check_choice(const std::vector<Host>& hosts, std::string_view rest) {
  const auto include = choices(take_until(rest, '\n'), "--");
  const auto exclude = choices(rest, "--");
  const auto chosen = choose_hosts(hosts, include, exclude);
  if (!chosen) return check_sentence(chosen.error().text, "");
  HVD_CHECK(chosen->size() <= hosts.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest = text_of(data, size);
  const std::string_view list = take_until(rest, '\n');
  const auto hosts = parse_host_list(list, "-H");
  if (!hosts) {
    check_sentence(hosts.error().text, "-H");
    return 0;
  }
  HVD_CHECK(hosts->size() <= kMostHosts);
  for (const Host& host : *hosts) {
    HVD_CHECK(check_host_name(host.name).ok() && host.name[0] != '-');
    HVD_CHECK(!has_controls(host.name) && !host_identity(host.name, host.port).empty());
    HVD_CHECK(host.slots <= kMostSlots);
  }
  const std::string text = printed(*hosts);
  const auto again = parse_host_list(text, "-H");
  HVD_CHECK(again.ok() && again->size() == hosts->size() && printed(*again) == text);
  check_choice(*hosts, rest);
  return 0;
}
