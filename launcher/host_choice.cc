#include "launcher/host_choice.h"

#include <algorithm>
#include <utility>

#include "launcher/host_spec.h"
#include "launcher/suggest.h"

namespace hvd {

namespace {

bool has_label(const Host& host, const std::string& label, const std::string& value) {
  return std::any_of(host.labels.begin(), host.labels.end(),
                     [&](const auto& l) { return l.first == label && l.second == value; });
}

bool is_named(const Host& host, const std::string& name) {
  return host_identity(host.name, 0) == host_identity(name, 0);
}

Error fits_none(const HostChoice& choice, const std::string& what, const std::string& name,
                const std::vector<Host>& hosts) {
  std::vector<std::string> known;
  for (const Host& host : hosts) known.push_back(host.name);
  return Error{choice.place + " " + in_quotes(choice.text) + ": no host " + what +
               suggestion(name, known)};
}

// Marks the hosts that the entry stands for.
Status mark(const HostChoice& choice, const std::vector<Host>& hosts, std::vector<bool>& marked) {
  const size_t equals = choice.text.find('=');
  if (equals != std::string::npos) {
    const std::string label = choice.text.substr(0, equals);
    const std::string value = choice.text.substr(equals + 1);
    bool any = false;
    for (size_t i = 0; i < hosts.size(); ++i) {
      if (!has_label(hosts[i], label, value)) continue;
      marked[i] = any = true;
    }
    return any ? Status(Ok{})
               : Error{choice.place + " " + in_quotes(choice.text) + ": no host has this label"};
  }
  const auto names = expand_ranges(choice.text);
  if (!names) return Error{choice.place + " " + in_quotes(choice.text) + ": " + names.error().text};
  for (const std::string& name : *names) {
    bool any = false;
    for (size_t i = 0; i < hosts.size(); ++i) {
      if (!is_named(hosts[i], name)) continue;
      marked[i] = any = true;
    }
    if (!any) return fits_none(choice, "is named " + in_quotes(name), name, hosts);
  }
  return Ok{};
}

Result<std::vector<bool>> mark_all(const std::vector<HostChoice>& choices,
                                   const std::vector<Host>& hosts) {
  std::vector<bool> marked(hosts.size());
  for (const HostChoice& choice : choices) {
    if (const Status status = mark(choice, hosts, marked); !status) return status.error();
  }
  return marked;
}

}  // namespace

Result<std::vector<Host>> choose_hosts(std::vector<Host> hosts,
                                       const std::vector<HostChoice>& include,
                                       const std::vector<HostChoice>& exclude) {
  const auto included = mark_all(include, hosts);
  if (!included) return included.error();
  const auto excluded = mark_all(exclude, hosts);
  if (!excluded) return excluded.error();
  std::vector<Host> chosen;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if ((include.empty() || (*included)[i]) && !(*excluded)[i]) chosen.push_back(hosts[i]);
  }
  if (!chosen.empty() || hosts.empty()) return chosen;
  return Error{(exclude.empty() ? include : exclude).front().place + " leaves no host"};
}

}  // namespace hvd
