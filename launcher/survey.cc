#include "launcher/survey.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/poller.h"
#include "launcher/host_links.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

// For agents to take their leave; after that their channels are closed on them.
constexpr Duration kFarewell = 2s;

class Survey {
 public:
  Survey(const Job& job, const std::vector<uint32_t>& hosts, bool accept_new_host_keys)
      : hosts_(hosts), links_(job, poller_, 0, accept_new_host_keys) {
    std::vector<HostLinks::News> news;
    for (const uint32_t host : hosts_) links_.open(host, news);
    take(news);
  }

  Result<std::vector<AgentHello>> run() {
    while (waiting()) turn(std::nullopt);
    const Time leave = now() + kFarewell;
    for (const auto& [host, hello] : told_) links_.send(host, Goodbye{0});
    while (links_.any() && now() < leave) turn(leave);
    return result();
  }

 private:
  bool waiting() {
    for (const uint32_t host : hosts_) {
      if (links_.find(host) != nullptr && !told_.contains(host)) return true;
    }
    return false;
  }

  void turn(std::optional<Time> deadline) {
    std::vector<HostLinks::News> news;
    for (const Ready& ready : poller_.wait(earlier(deadline, links_.deadline()))) {
      links_.serve(static_cast<uint32_t>(ready.id), now(), news);
    }
    links_.judge(now(), news);
    take(news);
  }

  void take(std::vector<HostLinks::News>& news) {
    for (HostLinks::News& one : news) {
      if (const auto* down = std::get_if<AgentLink::Down>(&one.what)) {
        errors_[one.host] = down->reason;
        links_.drop(one.host);
      } else if (auto* hello = std::get_if<AgentHello>(&std::get<FromAgent>(one.what))) {
        told_[one.host] = std::move(*hello);
      }
    }
  }

  Result<std::vector<AgentHello>> result() {
    std::vector<AgentHello> told;
    std::string errors;
    for (const uint32_t host : hosts_) {
      if (told_.contains(host)) {
        told.push_back(told_[host]);
      } else {
        errors += (errors.empty() ? "" : "\n") + errors_[host];
      }
    }
    if (!errors.empty()) return Error{errors};
    return told;
  }

  const std::vector<uint32_t>& hosts_;
  Poller poller_;
  HostLinks links_;
  std::map<uint32_t, AgentHello> told_;
  std::map<uint32_t, std::string> errors_;
};

}  // namespace

Result<std::vector<AgentHello>> survey(const Job& job, const std::vector<uint32_t>& hosts,
                                       bool accept_new_host_keys) {
  return Survey(job, hosts, accept_new_host_keys).run();
}

}  // namespace hvd
