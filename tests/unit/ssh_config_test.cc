// Which hosts the ssh configuration says something about, and what its answer means.
#include "launcher/ssh_config.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <map>

#include "launcher/ssh_plan.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

SshConfigText config(const std::string& text, const std::map<std::string, std::string>& more = {}) {
  SshConfigText parsed;
  const SshInclude include = [&](const std::string& pattern) {
    std::vector<SshConfigFile> files;
    if (more.contains(pattern)) files.push_back({pattern, more.at(pattern)});
    return files;
  };
  add_ssh_config({"config", text}, include, parsed);
  return parsed;
}

bool touched(const std::string& text, const std::string& host) {
  return config_use(config(text), host).touched;
}

bool same_group(const SshConfigText& text, const std::string& a, const std::string& b) {
  return config_use(text, a).group == config_use(text, b).group;
}

SshPlan plan(const std::string& answer, bool ticket = false) {
  SshTarget target;
  target.address = "gpu1";
  return ssh_plan(answer, target, {"/home/me", "me", "head", ticket});
}

}  // namespace

TEST_CASE("a host is touched by what may hold for it, and by nothing else") {
  CHECK_FALSE(touched("", "h1"));
  CHECK_FALSE(touched("# Port 1\n\n   \t\n", "h1"));
  CHECK_FALSE(touched("Host h2\n Port 1\n", "h1"));
  CHECK_FALSE(touched("Host h1\n\n", "h1"));
  CHECK(touched("Port 1\n", "h1"));
  CHECK(touched("Host h2\n Port 1\nHost *\n Port 2\n", "h1"));
  CHECK(touched("Host=h1 h2\nPort=1\n", "h1"));
  CHECK(touched("host \"h1\"\n\tport\t1\n", "h1"));
  CHECK(touched("Match host h2\n Port 1\n", "h1"));
  CHECK(touched("MATCH final\n", "h1"));
  CHECK(touched("CanonicalizeHostname yes\n", "h1"));
  CHECK(touched("Include ~/%h\n", "h1"));
  CHECK_FALSE(touched("Host !h1 *\n Port 1\n", "h1"));
}

TEST_CASE("patterns match as OpenSSH's do") {
  const auto match = [](const std::vector<std::string>& patterns, const char* host) {
    return matches_ssh_patterns(patterns, host);
  };
  CHECK(match({"*"}, "h1"));
  CHECK(match({"h?"}, "h1"));
  CHECK(match({"*.a*b"}, "x.aab"));
  CHECK(match({"192.168.0.?"}, "192.168.0.1"));
  CHECK_FALSE(match({"h?"}, "h12"));
  CHECK_FALSE(match({"h1"}, "H1"));
  CHECK_FALSE(match({"h*", "!h1"}, "h1"));
  CHECK_FALSE(match({"!h1"}, "h2"));
  CHECK_FALSE(match({""}, "h1"));
  CHECK_FALSE(match({}, "h1"));
}

TEST_CASE("hosts of the same blocks share an answer, others do not") {
  const std::string text =
      "Host gpu*\n User a\nHost gpu1 cpu1\n HostName x\nHost *\n SendEnv LANG\n";
  CHECK(same_group(config(text), "gpu2", "gpu3"));
  CHECK(same_group(config(text), "h1", "h2"));
  CHECK_FALSE(same_group(config(text), "gpu2", "h1"));
  CHECK_FALSE(same_group(config(text), "gpu1", "cpu1"));
  // A name of its own, or a Match, makes each a group of its own.
  CHECK_FALSE(same_group(config("HostName %h.lan\n"), "a", "b"));
  CHECK_FALSE(same_group(config("Match exec \"test %h = a\"\n Port 1\n"), "a", "b"));
  CHECK(same_group(config("Match all\n Port 1\n"), "a", "b"));
}

TEST_CASE("included files count where they stand") {
  const std::map<std::string, std::string> more = {{"x", "Port 1\nHost h2\n User a\n"}};
  CHECK(config_use(config("Include x\n", more), "h1").touched);
  const SshConfigText inside = config("Host h1\n Include x\nHost *\n", more);
  CHECK(config_use(inside, "h1").touched);
  // A block within a block takes OpenSSH to judge.
  CHECK(inside.beyond.keyword == "Include");
  CHECK(inside.beyond.place == "config line 2");
  CHECK(config("Include x\nHost h3\n", more).beyond.keyword.empty());
  CHECK(config("Include a", {{"a", "Include a\n"}}).beyond.keyword == "Include");
}

TEST_CASE("b6: a line of any length is one line") {
  const std::string names = std::string(3000, 'x') + " h9";
  CHECK_FALSE(touched("Host " + names + "\n ProxyCommand false\n", "h1"));
  CHECK(touched("Host " + names + "\n ProxyCommand false\n", "h9"));
}

TEST_CASE("without any answer the usual holds") {
  const SshPlan usual = plan("");
  CHECK(usual.host_name == "gpu1");
  CHECK(usual.port == 22);
  CHECK(usual.user == "me");
  CHECK(usual.identities == std::vector<std::string>{"/home/me/.ssh/id_rsa",
                                                     "/home/me/.ssh/id_ecdsa",
                                                     "/home/me/.ssh/id_ed25519"});
  CHECK(usual.known_hosts.size() == 4);
  CHECK(usual.known_hosts[0] == "/home/me/.ssh/known_hosts");
  CHECK(usual.beyond.empty());
}

TEST_CASE("a host's own name stands in HostName once, whatever is in it") {
  const auto directives = directives_for(config("HostName %h.lan%%h\n"), "fe80::1%hme0");
  REQUIRE(directives.size() == 1);
  CHECK(directives[0].value == "fe80::1%hme0.lan%h");
  CHECK(plan("hostname fe80::1%hme0\n").host_name == "fe80::1%hme0");
}

TEST_CASE("a port that is none does not count, and many stars take no time") {
  CHECK(plan("port 99999\n").port == 22);
  CHECK(plan("port -1\n").port == 22);
  std::string stars;
  for (int i = 0; i < 40; ++i) stars += "*a";
  CHECK_FALSE(matches_ssh_patterns({stars + "*b"}, std::string(200, 'a')));
  CHECK(matches_ssh_patterns({stars + "*"}, std::string(200, 'a')));
}

TEST_CASE("an answer is taken over") {
  const SshPlan p = plan(
      "hostname 10.0.0.1\nport 2222\nuser train\nidentitiesonly yes\nidentityfile ~/a\n"
      "identityfile %d/%r-%h-%n-%p-%u-%l-%%\nhostkeyalias x\naddressfamily inet6\n"
      "bindaddress 10.0.0.9\nconnecttimeout 7\nidentityagent ~/agent\n"
      "userknownhostsfile /k1 ~/k2\nglobalknownhostsfile none\nciphers a,b\nproxyjump none\n");
  CHECK(p.host_name == "10.0.0.1");
  CHECK(p.port == 2222);
  CHECK(p.user == "train");
  CHECK(p.identities_only);
  CHECK(p.identities ==
        std::vector<std::string>{"/home/me/a", "/home/me/train-10.0.0.1-gpu1-2222-me-head-%"});
  CHECK(p.known_as == "x");
  CHECK(p.family == AF_INET6);
  CHECK(p.bind_address == "10.0.0.9");
  CHECK(p.connect_limit == 7s);
  CHECK(p.identity_agent == "/home/me/agent");
  CHECK(p.known_hosts == std::vector<std::string>{"/k1", "/home/me/k2"});
  CHECK(p.ciphers == "a,b");
  CHECK(p.beyond.empty());
}

TEST_CASE("the target's own words win over the answer") {
  SshTarget target;
  target.address = "gpu1";
  target.port = 1;
  target.user = "root";
  target.known_hosts = "/k";
  const SshPlan p = ssh_plan("port 2\nuser x\nuserknownhostsfile /y\n", target, {});
  CHECK(p.port == 1);
  CHECK(p.user == "root");
  CHECK(p.known_hosts == std::vector<std::string>{"/k"});
}

TEST_CASE("b5: what libssh cannot honour is named") {
  for (const std::string directive :
       {"ProxyJump gate", "ProxyCommand nc %h %p", "CertificateFile ~/c", "PKCS11Provider /p",
        "KnownHostsCommand /k", "RevokedHostKeys /r", "BindInterface eth0",
        "HostbasedAuthentication yes", "PubkeyAuthentication no",
        "PreferredAuthentications gssapi-with-mic,password", "IdentityFile ~other/key",
        "IdentityFile ${KEYS}/key", "UserKnownHostsFile ~/%C", "IdentityAgent $AGENT"}) {
    CHECK(plan(directive + "\n").beyond == directive);
  }
  CHECK(plan("gssapiauthentication yes\n").beyond.empty());
  CHECK(plan("gssapiauthentication yes\n", true).beyond ==
        "GSSAPIAuthentication yes, with a Kerberos ticket");
  for (const std::string harmless :
       {"proxyjump none", "proxycommand none", "certificatefile none", "remotecommand tmux",
        "hostbasedauthentication no", "pubkeyauthentication true", "identityagent none",
        "preferredauthentications publickey,password", "sendenv LANG", "forwardagent yes"}) {
    CHECK(plan(harmless + "\n").beyond.empty());
  }
}
