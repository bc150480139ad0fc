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
  // With a folder, its job file is read on each host.
  Survey(const Job& job, const std::vector<uint32_t>& hosts, bool accept_new_host_keys,
         const std::string& folder = "")
      : job_(job), hosts_(hosts), folder_(folder), links_(job, poller_, 0, accept_new_host_keys) {
    std::vector<HostLinks::News> news;
    for (const uint32_t host : hosts_) links_.open(host, false, news);
    take(news);
  }

  Result<std::vector<AgentHello>> run() {
    while (waiting() && !(read_until_ && now() >= *read_until_)) turn(read_until_);
    const Time leave = now() + kFarewell;
    for (const auto& [host, hello] : told_) links_.send(host, Goodbye{0});
    while (links_.any() && now() < leave) turn(leave);
    return result();
  }

  // None from a host whose agent did not come to read it.
  std::optional<JobFileRead> job_file(uint32_t host) const {
    const auto found = read_.find(host);
    return found == read_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  bool waiting() {
    for (const uint32_t host : hosts_) {
      const bool told = folder_.empty() ? told_.contains(host) : read_.contains(host);
      if (links_.find(host) != nullptr && !told) return true;
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
        if (folder_.empty()) continue;
        links_.send(one.host, ReadJobFile{0, folder_});
        read_until_ = now() + job_.start_timeout;
      } else if (auto* read = std::get_if<JobFileRead>(&std::get<FromAgent>(one.what))) {
        read_[one.host] = std::move(*read);
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

  const Job& job_;
  const std::vector<uint32_t>& hosts_;
  const std::string folder_;
  Poller poller_;
  HostLinks links_;
  std::map<uint32_t, AgentHello> told_;
  std::map<uint32_t, JobFileRead> read_;
  std::optional<Time> read_until_;
  std::map<uint32_t, std::string> errors_;
};

}  // namespace

Result<std::vector<AgentHello>> survey(const Job& job, const std::vector<uint32_t>& hosts,
                                       bool accept_new_host_keys) {
  return Survey(job, hosts, accept_new_host_keys).run();
}

Result<FarJobFile> read_far_job_file(const Job& job, const std::string& dir,
                                     bool accept_new_host_keys) {
  const std::vector<uint32_t> only = {0};
  Survey survey(job, only, accept_new_host_keys, dir);
  const auto told = survey.run();
  if (!told) return told.error();
  const auto read = survey.job_file(0);
  if (!read) {
    return Error{job.hosts[0].name + " did not read " + dir + "/job.toml within " +
                 format_duration(job.start_timeout)};
  }
  return FarJobFile{told->front().hostname, read->text, read->error};
}

}  // namespace hvd
