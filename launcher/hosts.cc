#include "launcher/hosts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/fd.h"
#include "base/gpu_view.h"
#include "base/machine.h"
#include "launcher/host_spec.h"

namespace hvd {

namespace {

bool ends_in(const std::string& word, std::string_view end) {
  return word.ends_with(end);
}

bool is_this_machine(const std::string& name, const Machine& machine) {
  const std::string identity = host_identity(name, 0);
  return identity == host_identity("localhost", 0) || identity == host_identity("127.0.0.1", 0) ||
         identity == host_identity("::1", 0) ||
         (!machine.hostname.empty() && identity == host_identity(machine.hostname, 0));
}

}  // namespace

Result<HostFile> parse_host_file(const std::string& path) {
  const auto text = read_file(path, kLongestHostFile);
  if (!text) return text.error();
  return looks_like_toml(*text, path) ? parse_hosts_toml(*text, path)
                                      : parse_hosts_text(*text, path);
}

Result<std::vector<Host>> parse_host_list(std::string_view list, const std::string& source) {
  std::vector<Host> hosts;
  for (const std::string_view word : split_host_list(list)) {
    if (word.empty()) {
      return Error{source + " " + in_quotes(list) + ": an entry is empty: expected hosts such as " +
                   "h1:4,h2:4"};
    }
    const auto spec = parse_host_spec(word);
    if (!spec) return Error{source + " " + in_quotes(word) + ": " + spec.error().text};
    add_hosts(*spec, source, hosts);
    if (hosts.size() > kMostHosts) {
      return Error{source + ": more than " + std::to_string(kMostHosts) + " hosts"};
    }
  }
  return hosts;
}

HostWord kind_of_host_word(const std::string& word) {
  if (word.find('/') != std::string::npos || ends_in(word, ".toml") || ends_in(word, ".txt") ||
      ends_in(word, ".hosts")) {
    return HostWord::file;
  }
  if (word.find_first_of(",:") != std::string::npos) return HostWord::list;
  struct stat st;
  return stat(word.c_str(), &st) == 0 ? HostWord::file_by_chance : HostWord::list;
}

Status check_no_duplicates(const std::vector<Host>& hosts) {
  std::map<std::string, const Host*> seen;
  for (const Host& host : hosts) {
    const auto [place, fresh] = seen.emplace(host_identity(host.name, host.port), &host);
    if (fresh) continue;
    const std::string& first = place->second->source;
    return Error{host.source + ": host " + in_quotes(host.name) + " is named twice" +
                 (first == host.source ? "" : ", first at " + first) +
                 ": expected each host once, with all of its slots"};
  }
  return Ok{};
}

Machine this_machine() {
  Machine machine;
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) == 0) machine.hostname = name;
  if (const char* user = std::getenv("USER")) machine.user = user;
  machine.gpus = visible_gpus(count_gpus());
  machine.cores = count_cores();
  return machine;
}

void mark_local(std::vector<Host>& hosts, const Machine& machine) {
  for (Host& host : hosts) {
    host.local = is_this_machine(host.name, machine) && host.port == 0 &&
                 (host.user.empty() || host.user == machine.user) &&
                 (host.address == host.name || is_this_machine(host.address, machine));
  }
}

}  // namespace hvd
