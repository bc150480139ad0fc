#include "launcher/host_memory.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

namespace hvd {

namespace {

constexpr int64_t kRemembered = 24 * 60 * 60;

std::string time_of_day(int64_t at) {
  const auto seconds = static_cast<time_t>(at);
  tm parts;
  char text[32];
  localtime_r(&seconds, &parts);
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

}  // namespace

std::string host_failure_line(const HostFailure& failure) {
  const nlohmann::ordered_json json = {
      {"time", failure.at}, {"host", failure.host}, {"reason", failure.reason}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::vector<HostFailure> recent_failures(std::string_view text, int64_t now) {
  std::vector<HostFailure> found;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const auto json = nlohmann::json::parse(text.substr(0, end), nullptr, false);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!json.is_object()) continue;
    const auto at = json.find("time"), host = json.find("host"), reason = json.find("reason");
    if (at == json.end() || host == json.end() || reason == json.end()) continue;
    if (!at->is_number_integer() || !host->is_string() || !reason->is_string()) continue;
    const auto when = at->get<int64_t>();
    if (when > now || now - when > kRemembered) continue;
    found.push_back({when, *host, *reason});
  }
  return found;
}

std::vector<std::string> describe_failures(const std::vector<HostFailure>& failures,
                                           const std::vector<std::string>& hosts) {
  std::vector<std::string> texts;
  for (const std::string& host : hosts) {
    size_t count = 0;
    const HostFailure* last = nullptr;
    for (const HostFailure& one : failures) {
      if (one.host != host) continue;
      ++count;
      last = &one;
    }
    if (last == nullptr) continue;
    texts.push_back(host + " failed " + (count == 1 ? "once" : std::to_string(count) + " times") +
                    " in runs of the last day, last at " + time_of_day(last->at) + ": " +
                    last->reason);
  }
  return texts;
}

}  // namespace hvd
