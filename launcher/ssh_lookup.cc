#include "launcher/ssh_lookup.h"

#include <glob.h>
#include <poll.h>
#include <pwd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "base/process.h"
#include "launcher/terminal_text.h"

extern char** environ;

namespace hvd {

namespace {

constexpr size_t kLongestConfig = 4u << 20;
constexpr size_t kLongestAnswer = 1u << 20;
constexpr const char* kSystemConfig = "/etc/ssh/ssh_config";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A file that is not there, or that cannot be read, says nothing: ssh will tell of the second.
std::string text_of(const std::string& path) {
  auto text = read_file(path, kLongestConfig);
  return text ? std::move(*text) : std::string();
}

bool has_ticket_cache() {
  const std::string named = variable("KRB5CCNAME");
  const size_t colon = named.find(':');
  const std::string kind = colon == named.npos ? "FILE" : named.substr(0, colon);
  if (named.empty()) return access(("/tmp/krb5cc_" + std::to_string(getuid())).c_str(), R_OK) == 0;
  if (kind != "FILE" && kind != "DIR") return true;
  return access(named.substr(colon == named.npos ? 0 : colon + 1).c_str(), R_OK) == 0;
}

SshAccount own_account() {
  SshAccount account;
  const passwd* entry = getpwuid(getuid());
  account.home = entry == nullptr ? variable("HOME") : entry->pw_dir;
  account.user = entry == nullptr ? "root" : entry->pw_name;
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  account.host_name = name;
  account.has_ticket = has_ticket_cache();
  return account;
}

// Lines of known_hosts that begin with a mark: "@cert-authority *.lan ssh-ed25519 ...".
std::vector<std::string> marked_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    if (text[start] == '@') lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

// Whether the line may be about the host, whatever the port; a hashed name may.
bool marks_host(const std::string& line, const std::string& host) {
  const size_t start = line.find_first_not_of(" \t", line.find_first_of(" \t"));
  if (start == line.npos) return false;
  const std::string names = line.substr(start, line.find_first_of(" \t", start) - start);
  if (names.starts_with('|')) return true;
  std::vector<std::string> patterns(1);
  for (const char c : names) {
    if (c == ',') {
      patterns.emplace_back();
    } else {
      patterns.back() += c;
    }
  }
  // "[name]:port" is about the name.
  for (std::string& pattern : patterns) {
    const size_t close = pattern.find(']');
    if (pattern.starts_with('[') && close != pattern.npos) pattern = pattern.substr(1, close - 1);
  }
  return matches_ssh_patterns(patterns, host);
}

// A program's stdout and stderr, and how it ended; none if it was given up and killed.
struct Told {
  std::string out, err;
  Ending ending;
};

// Appends what is there; false at the end of the stream.
bool read_some(const Fd& from, std::string& to) {
  char block[4096];
  const ssize_t n = read(from.get(), block, sizeof block);
  if (n > 0 && to.size() < kLongestAnswer) to.append(block, static_cast<size_t>(n));
  return n > 0 || (n < 0 && errno == EINTR);
}

std::optional<Told> listen_to(Child& child, Fd out, Fd err, Time limit, int cancel) {
  Told told;
  while (out || err) {
    pollfd fds[3] = {{out.get(), POLLIN, 0}, {err.get(), POLLIN, 0}, {cancel, POLLIN, 0}};
    const int n = poll(fds, 3, poll_timeout(limit, now()));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || fds[2].revents != 0) {
      kill(-child.pid, SIGKILL);
      reap(child);
      return std::nullopt;
    }
    if (fds[0].revents != 0 && !read_some(out, told.out)) out.reset();
    if (fds[1].revents != 0 && !read_some(err, told.err)) err.reset();
  }
  told.ending = reap(child);
  return told;
}

}  // namespace

std::string find_ssh_program() {
  const auto found = find_program("ssh", variable("PATH"), "");
  const auto* path = std::get_if<std::string>(&found);
  return path == nullptr ? "" : *path;
}

void SshLookup::read() {
  account_ = own_account();
  const auto add = [this](const std::string& path, bool system) {
    add_ssh_config(
        {path, text_of(path)},
        [&](const std::string& pattern) { return included(pattern, system); }, config_);
  };
  if (!config_path_.empty()) return add(config_path_, false);
  add(account_.home + "/.ssh/config", false);
  add(kSystemConfig, true);
}

std::vector<SshConfigFile> SshLookup::included(const std::string& pattern, bool system) const {
  std::string path = pattern;
  if (path.starts_with("~/")) {
    path = account_.home + path.substr(1);
  } else if (!path.starts_with('/')) {
    path = (system ? "/etc/ssh/" : account_.home + "/.ssh/") + path;
  }
  std::vector<SshConfigFile> files;
  glob_t found{};
  if (glob(path.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      files.push_back({found.gl_pathv[i], text_of(found.gl_pathv[i])});
    }
  }
  globfree(&found);
  return files;
}

Result<SshPlan> SshLookup::plan(const SshTarget& target, Time limit, int cancel) {
  std::call_once(read_once_, [this] { read(); });
  const SshConfigUse use = config_use(config_, target.address);
  Answer told = use.touched ? answer(target, use, limit, cancel) : Answer(std::string());
  if (!told) return told.error();
  SshPlan plan = ssh_plan(*told, target, account_);
  // ssh -G names its own lists where the configuration has none.
  if (!mentions(config_, "HostKeyAlgorithms")) plan.host_key_algorithms.clear();
  if (!mentions(config_, "Ciphers")) plan.ciphers.clear();
  if (!mentions(config_, "MACs")) plan.macs.clear();
  if (!mentions(config_, "KexAlgorithms")) plan.key_exchanges.clear();
  if (!mentions(config_, "PubkeyAcceptedAlgorithms") &&
      !mentions(config_, "PubkeyAcceptedKeyTypes")) {
    plan.public_key_algorithms.clear();
  }
  if (plan.beyond.empty()) plan.beyond = known_hosts_mark(plan);
  return plan;
}

// Host certificates and revoked keys: libssh passes over those lines.
std::string SshLookup::known_hosts_mark(const SshPlan& plan) {
  const std::lock_guard lock(mutex_);
  for (const std::string& file : plan.known_hosts) {
    const auto [place, first] = marked_lines_.try_emplace(file);
    if (first) place->second = marked_lines(text_of(file));
    for (const std::string& line : place->second) {
      if (marks_host(line, plan.known_as.empty() ? plan.host_name : plan.known_as)) {
        return line.substr(0, line.find(' ')) + " in " + file;
      }
    }
  }
  return "";
}

// One host of a group asks, the others wait for its answer.
SshLookup::Answer SshLookup::answer(const SshTarget& target, const SshConfigUse& use, Time limit,
                                    int cancel) {
  const std::string key = use.group + " " + target.user + " " + std::to_string(target.port);
  std::promise<Answer> ours;
  std::unique_lock lock(mutex_);
  const auto [place, first] = answers_.try_emplace(key);
  if (first) place->second = ours.get_future().share();
  const std::shared_future<Answer> future = place->second;
  lock.unlock();
  if (first) ours.set_value(ask(target, limit, cancel));
  if (future.wait_for(limit - now()) != std::future_status::ready) return Error{};
  Answer got = future.get();
  if (!got) {
    if (got.error().text.empty()) return got;
    return Error{"cannot reach " + target.label + ": " + got.error().text};
  }
  // The name by which another host of the group was asked for.
  if (use.group != target.address) *got = "hostname " + target.address + "\n" + *got;
  return got;
}

SshLookup::Answer SshLookup::ask(const SshTarget& target, Time limit, int cancel) const {
  SpawnSpec spec;
  spec.program = find_ssh_program();
  if (spec.program.empty()) return read_ourselves(target);
  spec.argv = {"ssh", "-G"};
  if (!config_path_.empty()) spec.argv.insert(spec.argv.end(), {"-F", config_path_});
  if (target.port != 0) spec.argv.insert(spec.argv.end(), {"-p", std::to_string(target.port)});
  if (!target.user.empty()) spec.argv.insert(spec.argv.end(), {"-l", target.user});
  spec.argv.insert(spec.argv.end(), {"--", target.address});
  for (char** entry = environ; *entry != nullptr; ++entry) spec.environment.emplace_back(*entry);
  auto out = make_pipe(), err = make_pipe();
  if (!out || !err) return Error{(out ? err : out).error().text};
  spec.out = out->write.get();
  spec.err = err->write.get();
  spec.new_session = true;
  SpawnResult child = spawn(spec);
  if (const auto* failure = std::get_if<SpawnFailure>(&child)) return Error{failure->text};
  out->write.reset();
  err->write.reset();
  const auto told =
      listen_to(std::get<Child>(child), std::move(out->read), std::move(err->read), limit, cancel);
  if (!told) return Error{};
  if (told->ending.exit_code == 0 && told->ending.signal == 0) return told->out;
  std::string text = told->err;
  std::erase(text, '\r');
  std::string why = terminal_lines("", text);
  why.pop_back();
  return Error{"the ssh configuration cannot be used: " + why};
}

// Without OpenSSH on this machine.
SshLookup::Answer SshLookup::read_ourselves(const SshTarget& target) const {
  const SshDirective& beyond = config_.beyond;
  if (!beyond.keyword.empty()) {
    return Error{"the ssh configuration has \"" + beyond.keyword + " " + beyond.value + "\" at " +
                 beyond.place + ", which takes the program ssh, and that is not installed here"};
  }
  std::string answer;
  for (const SshDirective& directive : directives_for(config_, target.address)) {
    answer += directive.keyword + " " + directive.value + "\n";
  }
  return answer;
}

}  // namespace hvd
