#include "launcher/ssh_plan.h"

#include <strings.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <optional>

#include "launcher/host_spec.h"

namespace hvd {

namespace {

using namespace std::chrono_literals;

bool says_yes(const std::string& value) {
  return value == "yes" || value == "true";
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (size_t start = text.find_first_not_of(" \t"); start != text.npos;) {
    const size_t end = std::min(text.find_first_of(" \t", start), text.size());
    words.push_back(text.substr(start, end - start));
    start = text.find_first_not_of(" \t", end);
  }
  return words;
}

std::string unquoted(std::string text) {
  std::erase(text, '"');
  return text;
}

class Planner {
 public:
  Planner(std::string_view answer, const SshTarget& target, const SshAccount& account)
      : target_(target), account_(account) {
    while (!answer.empty()) {
      const size_t end = std::min(answer.find('\n'), answer.size());
      take(answer.substr(0, end));
      answer.remove_prefix(std::min(end + 1, answer.size()));
    }
  }

  SshPlan plan() {
    set_place();
    set_keys();
    set_known_hosts();
    set_algorithms();
    look_beyond();
    return std::move(plan_);
  }

 private:
  void take(std::string_view line) {
    const size_t blank = line.find(' ');
    if (blank == line.npos) return;
    std::string keyword(line.substr(0, blank));
    std::transform(keyword.begin(), keyword.end(), keyword.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    values_[keyword].emplace_back(line.substr(blank + 1));
  }

  // The keyword's first value; empty if it has none or "none".
  std::string value(const char* keyword) const {
    const auto found = values_.find(keyword);
    if (found == values_.end()) return {};
    const std::string text = unquoted(found->second.front());
    return strcasecmp(text.c_str(), "none") == 0 ? "" : text;
  }
  std::vector<std::string> all(const char* keyword) const {
    const auto found = values_.find(keyword);
    std::vector<std::string> texts;
    if (found == values_.end()) return texts;
    for (const std::string& text : found->second) texts.push_back(unquoted(text));
    return texts;
  }
  void beyond(const std::string& directive) {
    if (plan_.beyond.empty()) plan_.beyond = directive;
  }

  void set_place();
  void set_keys();
  void set_known_hosts();
  void set_algorithms();
  void look_beyond();
  // A path with ~, %-tokens and ${VARIABLES}; none if it holds one that is not known here.
  std::optional<std::string> expanded(const std::string& text) const;
  std::optional<std::string> token(char c) const;
  std::string path_of(const char* directive, const std::string& text);

  const SshTarget& target_;
  const SshAccount& account_;
  std::map<std::string, std::vector<std::string>> values_;
  SshPlan plan_;
};

void Planner::set_place() {
  const std::string name = value("hostname");
  plan_.host_name = name.empty() ? target_.address : name;
  if (const auto port = parse_count(value("port"), 1, 65'535)) plan_.port = static_cast<int>(*port);
  if (target_.port != 0) plan_.port = target_.port;
  const std::string user = value("user");
  plan_.user = user.empty() ? account_.user : user;
  if (!target_.user.empty()) plan_.user = target_.user;
  const std::string family = value("addressfamily");
  plan_.family = family == "inet" ? AF_INET : family == "inet6" ? AF_INET6 : 0;
  plan_.bind_address = value("bindaddress");
  const std::string limit = value("connecttimeout");
  if (const auto duration = parse_duration(limit); !limit.empty() && duration) {
    plan_.connect_limit = *duration;
  }
}

void Planner::set_keys() {
  plan_.identities_only = says_yes(value("identitiesonly"));
  if (values_.contains("identityfile")) {
    for (const std::string& file : all("identityfile")) {
      if (strcasecmp(file.c_str(), "none") == 0) continue;
      plan_.identities.push_back(path_of("IdentityFile", file));
    }
  } else {
    for (const char* name : {"id_rsa", "id_ecdsa", "id_ed25519"}) {
      plan_.identities.push_back(account_.home + "/.ssh/" + name);
    }
  }
  if (!values_.contains("identityagent")) return;
  const std::string agent = value("identityagent");
  if (agent.empty()) plan_.identity_agent = "none";
  if (agent.empty() || agent == "SSH_AUTH_SOCK") return;
  if (agent.starts_with('$')) return beyond("IdentityAgent " + agent);
  plan_.identity_agent = path_of("IdentityAgent", agent);
}

void Planner::set_known_hosts() {
  plan_.known_as = value("hostkeyalias");
  if (!target_.known_hosts.empty()) {
    plan_.known_hosts = {target_.known_hosts};
    return;
  }
  const auto add = [&](const char* keyword, const char* directive, const std::string& usual) {
    const bool given = values_.contains(keyword);
    for (const std::string& file : words_of(given ? all(keyword).front() : usual)) {
      if (file == "none") continue;
      plan_.known_hosts.push_back(path_of(directive, file));
    }
  };
  add("userknownhostsfile", "UserKnownHostsFile", "~/.ssh/known_hosts ~/.ssh/known_hosts2");
  add("globalknownhostsfile", "GlobalKnownHostsFile",
      "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2");
}

void Planner::set_algorithms() {
  plan_.host_key_algorithms = value("hostkeyalgorithms");
  plan_.ciphers = value("ciphers");
  plan_.macs = value("macs");
  plan_.key_exchanges = value("kexalgorithms");
  const bool old_name = !values_.contains("pubkeyacceptedalgorithms");
  plan_.public_key_algorithms =
      value(old_name ? "pubkeyacceptedkeytypes" : "pubkeyacceptedalgorithms");
}

void Planner::look_beyond() {
  static constexpr const char* kAnyValue[][2] = {
      {"proxyjump", "ProxyJump"},
      {"proxycommand", "ProxyCommand"},
      {"certificatefile", "CertificateFile"},
      {"pkcs11provider", "PKCS11Provider"},
      {"knownhostscommand", "KnownHostsCommand"},
      {"revokedhostkeys", "RevokedHostKeys"},
      {"bindinterface", "BindInterface"},
  };
  for (const auto& [keyword, directive] : kAnyValue) {
    const std::string text = value(keyword);
    if (!text.empty()) beyond(std::string(directive) + " " + text);
  }
  if (says_yes(value("hostbasedauthentication"))) beyond("HostbasedAuthentication yes");
  if (account_.has_ticket && says_yes(value("gssapiauthentication"))) {
    beyond("GSSAPIAuthentication yes, with a Kerberos ticket");
  }
  const std::string keys = value("pubkeyauthentication");
  if (!keys.empty() && !says_yes(keys)) beyond("PubkeyAuthentication " + keys);
  const std::string preferred = value("preferredauthentications");
  if (!preferred.empty() && preferred.find("publickey") == preferred.npos) {
    beyond("PreferredAuthentications " + preferred);
  }
}

std::string Planner::path_of(const char* directive, const std::string& text) {
  const auto path = expanded(text);
  if (path) return *path;
  beyond(directive + (" " + text));
  return text;
}

std::optional<std::string> Planner::token(char c) const {
  switch (c) {
    case '%':
      return "%";
    case 'd':
      return account_.home;
    case 'h':
      return plan_.host_name;
    case 'n':
      return target_.address;
    case 'p':
      return std::to_string(plan_.port);
    case 'r':
      return plan_.user;
    case 'u':
      return account_.user;
    case 'l':
      return account_.host_name;
    default:
      return std::nullopt;
  }
}

std::optional<std::string> Planner::expanded(const std::string& text) const {
  if (text.find("${") != text.npos) return std::nullopt;
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      path += text[i];
      continue;
    }
    const auto by = i + 1 < text.size() ? token(text[++i]) : std::nullopt;
    if (!by) return std::nullopt;
    path += *by;
  }
  if (path.starts_with("~/")) return account_.home + path.substr(1);
  if (path.starts_with('~')) return std::nullopt;
  return path;
}

}  // namespace

SshPlan ssh_plan(std::string_view answer, const SshTarget& target, const SshAccount& account) {
  return Planner(answer, target, account).plan();
}

}  // namespace hvd
