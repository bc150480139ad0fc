#include "launcher/ssh_login.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/time.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

// An ssh-agent that does not tell its keys within this is left out.
constexpr Duration kAgentLimit = 2s;

struct FreeKey {
  void operator()(ssh_key key) const { ssh_key_free(key); }
};
using Key = std::unique_ptr<ssh_key_struct, FreeKey>;

std::string owned(char* text) {
  std::string copy = text == nullptr ? "" : text;
  ssh_string_free_char(text);
  return copy;
}

// "ED25519 SHA256:...", as OpenSSH prints it.
std::string fingerprint(ssh_session session) {
  ssh_key raw = nullptr;
  if (ssh_get_server_publickey(session, &raw) != SSH_OK) return "of unknown type";
  const Key key(raw);
  unsigned char* hash = nullptr;
  size_t size = 0;
  ssh_get_publickey_hash(raw, SSH_PUBLICKEY_HASH_SHA256, &hash, &size);
  const std::string digest = owned(ssh_get_fingerprint_hash(SSH_PUBLICKEY_HASH_SHA256, hash, size));
  ssh_clean_pubkey_hash(&hash);
  return std::string(ssh_key_type_to_char(ssh_key_type(raw))) + " " + digest;
}

std::string joined(const std::vector<std::string>& words, const char* last = " and ") {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? last : ", ";
    text += words[i];
  }
  return text;
}

bool wait_readable(int fd, Time until) {
  while (true) {
    pollfd entry{fd, POLLIN, 0};
    const int n = poll(&entry, 1, poll_timeout(until, now()));
    if (n >= 0 || errno != EINTR) return n > 0;
  }
}

// Asks the ssh-agent at `path` how many keys it holds, with a limit, because libssh asks without
// one; none if it does not answer.
std::optional<uint32_t> agent_key_count(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // An agent that does not even accept fills its queue in time: non-blocking, then.
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* to = reinterpret_cast<const sockaddr*>(&address);
  if (!socket || connect(socket.get(), to, sizeof address) != 0) return std::nullopt;
  const char request_identities[5] = {0, 0, 0, 1, 11};
  if (send(socket.get(), request_identities, 5, MSG_NOSIGNAL) != 5) return std::nullopt;
  unsigned char answer[9];  // big-endian: length (4), type (1), count (4)
  size_t have = 0;
  const Time until = now() + kAgentLimit;
  while (have < 5 || (have < sizeof answer && answer[4] == 12)) {
    if (!wait_readable(socket.get(), until)) return std::nullopt;
    const ssize_t n = recv(socket.get(), answer + have, sizeof answer - have, 0);
    if (n <= 0) return std::nullopt;
    have += static_cast<size_t>(n);
  }
  if (answer[4] != 12) return 0;
  return uint32_t{answer[5]} << 24 | uint32_t{answer[6]} << 16 | uint32_t{answer[7]} << 8 |
         uint32_t{answer[8]};
}

// One login: what was offered, and the sentence when all of it was refused.
class Login {
 public:
  Login(SshLink& link, const SshTarget& target, const SshPlan& plan, const Endpoint& endpoint,
        const LinkWait& wait)
      : link_(link),
        session_(link.session()),
        target_(target),
        plan_(plan),
        endpoint_(endpoint),
        wait_(wait) {}

  Attempted run();

 private:
  // A key that the server refused is no trouble: the next one is tried. done_ says we are in.
  Attempted try_identity();
  Attempted try_agent();
  Attempted try_file(const std::string& path);
  Attempted ask_methods();
  Attempted judge(std::optional<int> verdict);
  Key load(const std::string& path);
  Trouble refused() const;

  SshLink& link_;
  ssh_session session_;
  const SshTarget& target_;
  const SshPlan& plan_;
  const Endpoint& endpoint_;
  const LinkWait& wait_;
  std::vector<std::string> tried_;
  std::vector<std::string> remarks_;
  bool done_ = false;
};

Attempted Login::run() {
  Attempted trouble = try_identity();
  if (!trouble && !done_) trouble = try_agent();
  for (const std::string& path : plan_.identities) {
    if (!trouble && !done_ && path != target_.identity) trouble = try_file(path);
  }
  if (!trouble && !done_ && ssh_userauth_list(session_, nullptr) == 0) trouble = ask_methods();
  if (trouble) return trouble;
  return done_ ? Attempted{} : refused();
}

Attempted Login::judge(std::optional<int> verdict) {
  if (!verdict) return Trouble{};
  done_ = *verdict == SSH_AUTH_SUCCESS;
  if (*verdict == SSH_AUTH_ERROR && link_.broken()) {
    const std::string why = link_.error();
    const bool counted = why.find("Too many authentication failures") != why.npos;
    std::string text =
        "the login on " + target_.label + " (" + endpoint_.where + ") ended early: " + why;
    if (counted) text += "; it was offered " + joined(tried_);
    return Trouble{text, !counted};
  }
  if (*verdict == SSH_AUTH_ERROR) remarks_.push_back(link_.error());
  if (*verdict == SSH_AUTH_PARTIAL) {
    remarks_.push_back("it accepts the key but asks for more than a key");
    return refused();
  }
  return std::nullopt;
}

// None if the file holds no key that can be used; a remark says why.
Key Login::load(const std::string& path) {
  bool locked = false;
  ssh_key raw = nullptr;
  const auto no_passphrase = [](const char*, char*, size_t, int, int, void* needed) {
    *static_cast<bool*>(needed) = true;
    return -1;
  };
  if (access(path.c_str(), R_OK) != 0) {
    remarks_.push_back("the key file " + path +
                       " cannot be read: " + std::string(std::strerror(errno)));
    return nullptr;
  }
  const int rc = ssh_pki_import_privkey_file(path.c_str(), nullptr, no_passphrase, &locked, &raw);
  Key key(raw);
  if (locked) {
    remarks_.push_back(path + " has a passphrase: add it to the ssh-agent with ssh-add");
  } else if (rc != SSH_OK) {
    remarks_.push_back("the key file " + path + " holds no private key");
  }
  return rc == SSH_OK ? std::move(key) : nullptr;
}

// The key file that was asked for: it is an error if there is none.
Attempted Login::try_identity() {
  if (target_.identity.empty()) return std::nullopt;
  const size_t remarks = remarks_.size();
  const Attempted trouble = try_file(target_.identity);
  if (remarks_.size() == remarks || remarks_.back().find("passphrase") != std::string::npos) {
    return trouble;
  }
  return Trouble{"cannot log in on " + target_.label + ": " + remarks_.back()};
}

Attempted Login::try_file(const std::string& path) {
  // Of the usual files most are not there.
  if (path != target_.identity && access(path.c_str(), F_OK) != 0) return std::nullopt;
  const Key key = load(path);
  if (!key) return std::nullopt;
  tried_.push_back(path);
  return judge(repeat(SSH_AUTH_AGAIN, link_, wait_,
                      [&] { return ssh_userauth_publickey(session_, nullptr, key.get()); }));
}

// libssh offers all of an agent's keys or none.
Attempted Login::try_agent() {
  const char* usual = std::getenv("SSH_AUTH_SOCK");
  const std::string path =
      plan_.identity_agent.empty() ? (usual == nullptr ? "" : usual) : plan_.identity_agent;
  if (plan_.identities_only || path.empty() || path == "none") return std::nullopt;
  const std::optional<uint32_t> count = agent_key_count(path);
  if (!count) remarks_.push_back("the ssh-agent at " + path + " does not answer");
  if (!count || *count == 0) return std::nullopt;
  tried_.push_back(*count == 1 ? "the key of the ssh-agent"
                               : std::to_string(*count) + " keys of the ssh-agent");
  return judge(
      repeat(SSH_AUTH_AGAIN, link_, wait_, [&] { return ssh_userauth_agent(session_, nullptr); }));
}

// With no key to offer at all, this is how to learn what the server would accept.
Attempted Login::ask_methods() {
  return judge(
      repeat(SSH_AUTH_AGAIN, link_, wait_, [&] { return ssh_userauth_none(session_, nullptr); }));
}

Trouble Login::refused() const {
  const std::string user = link_.text_option(SSH_OPTIONS_USER);
  const int methods = ssh_userauth_list(session_, nullptr);
  std::vector<std::string> offered;
  if ((methods & SSH_AUTH_METHOD_PUBLICKEY) != 0) offered.emplace_back("publickey");
  if ((methods & SSH_AUTH_METHOD_PASSWORD) != 0) offered.emplace_back("password");
  if ((methods & SSH_AUTH_METHOD_INTERACTIVE) != 0) offered.emplace_back("keyboard-interactive");
  if ((methods & SSH_AUTH_METHOD_HOSTBASED) != 0) offered.emplace_back("hostbased");
  if ((methods & SSH_AUTH_METHOD_GSSAPI_MIC) != 0) offered.emplace_back("gssapi-with-mic");
  std::string text = target_.label + " (" + endpoint_.where + ") refuses the login of user " + user;
  text += tried_.empty() ? ": there was no key to offer" : ": it was offered " + joined(tried_);
  if (!offered.empty()) text += "; the server accepts " + joined(offered, " or ");
  for (const std::string& remark : remarks_) text += "; " + remark;
  return {text, false, true};
}

}  // namespace

Attempted check_host_key(SshLink& link, const SshTarget& target, const Endpoint& endpoint) {
  ssh_session session = link.session();
  ssh_known_hosts_e verdict = ssh_session_is_known_server(session);
  if (verdict == SSH_KNOWN_HOSTS_OK) return std::nullopt;
  if (endpoint.by_name_alone) {
    // Another key of the name is none of this port's: it is just unknown, and recorded with it.
    link.set(SSH_OPTIONS_PORT, &endpoint.port);
    verdict = ssh_session_is_known_server(session);
  }
  const std::string file = link.text_option(SSH_OPTIONS_KNOWNHOSTS);
  const std::string key = fingerprint(session);
  const std::string entry = endpoint.port == 22
                                ? endpoint.name
                                : "[" + endpoint.name + "]:" + std::to_string(endpoint.port);
  const std::string host = target.label + " (" + endpoint.where + ")";
  switch (verdict) {
    case SSH_KNOWN_HOSTS_UNKNOWN:
    case SSH_KNOWN_HOSTS_NOT_FOUND:
      if (target.accept_new_host_keys) {
        if (ssh_session_update_known_hosts(session) == SSH_OK) return std::nullopt;
        return Trouble{"the new host key of " + host + " cannot be recorded: " + link.error()};
      }
      return Trouble{"the host key of " + host + " is unknown: it shows " + key + ", and " + file +
                     " has no entry for " + entry +
                     "; log in once with ssh to check and record it, or give "
                     "--accept-new-host-keys"};
    case SSH_KNOWN_HOSTS_CHANGED:
      return Trouble{"the host key of " + host + " has changed: it shows " + key +
                     ", which is not the one in " + file +
                     "; somebody may be in between. If the host was set up anew, remove the old "
                     "key with: ssh-keygen -f " +
                     file + " -R '" + entry + "'"};
    case SSH_KNOWN_HOSTS_OTHER:
      return Trouble{"the host key of " + host + " is of another type than the one in " + file +
                     ": it shows " + key +
                     "; somebody may be in between. If the host was set up anew, remove the old "
                     "key with: ssh-keygen -f " +
                     file + " -R '" + entry + "'"};
    default:
      break;
  }
  return Trouble{"the host key of " + host + " cannot be checked: " + link.error()};
}

Attempted log_in(SshLink& link, const SshTarget& target, const SshPlan& plan,
                 const Endpoint& endpoint, const LinkWait& wait) {
  return Login(link, target, plan, endpoint, wait).run();
}

}  // namespace hvd
