// What the user's ssh configuration asks for works as it does for ssh, over libssh where it can and
// over the program ssh where it cannot; without that program it is refused at once, by name.
#include "launcher/ssh_route.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "launcher/openssh.h"
#include "launcher/pause.h"
#include "tests/ssh/ssh_server.h"

using namespace hvd;
using namespace hvd::testing;
using namespace std::chrono_literals;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Sets an environment variable for one test.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    const char* old = getenv(name);
    old_ = old == nullptr ? "" : old;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

// A target that is called "inner" and known by the configuration only.
SshTarget configured(const SshServer& server, const std::string& config) {
  SshTarget target = server.target("echo hello; exec cat");
  target.address = "inner";
  target.port = 0;
  target.user = "";
  target.identity = "";
  target.known_hosts = "";
  target.config = server.path("config");
  write_file(target.config, config);
  return target;
}

std::string basics(const SshServer& server) {
  return "UserKnownHostsFile " + server.path("known_hosts") +
         "\nGlobalKnownHostsFile /dev/null\nUser " + server.target("").user + "\nIdentityFile " +
         server.path("user") + "\nIdentitiesOnly yes\n";
}

std::string place(const SshServer& server) {
  return "HostName 127.0.0.2\nPort " + std::to_string(server.port()) + "\n";
}

void check_works(SshTarget target) {
  target.deadline = now() + 20s;
  Driver driver(start_ssh_route(std::move(target)));
  const bool greeted = driver.run(20s, [&] {
    return driver.received == "hello\n" || driver.channel().state() == ChannelState::closed;
  });
  INFO(driver.channel().reason());
  REQUIRE(greeted);
  REQUIRE(driver.channel().state() == ChannelState::open);
  driver.channel().send("and back\n");
  const bool echoed = driver.run(10s, [&] { return driver.received == "hello\nand back\n"; });
  CHECK(echoed);
}

std::string refusal(const SshTarget& target, Duration limit) {
  const Time start = now();
  Driver driver(start_ssh_route(target));
  REQUIRE(driver.until_closed(limit));
  CHECK(now() - start < limit);
  CHECK(driver.channel().end() == ChannelEnd::refused);
  return driver.channel().reason();
}

size_t logins(const SshServer& server) {
  const std::string log = file_text(server.path("log"));
  size_t count = 0;
  for (size_t at = log.find("Accepted "); at != log.npos; at = log.find("Accepted ", at + 1)) {
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("b5: a host behind another one is reached through it") {
  const SshServer gate;
  const SshServer inner;
  const std::string config = "Host gate\n" + basics(gate) + place(gate) + "Host inner\n" +
                             basics(inner) + place(inner) + "ProxyJump gate\n";
  SshTarget target = configured(inner, config);
  check_works(target);
  CHECK(logins(gate) == 1);
  SUBCASE("and without the program ssh it is refused by name at once") {
    const Variable path("PATH", inner.path("nowhere"));
    CHECK(refusal(target, 5s) ==
          "cannot reach h1: its ssh configuration has \"ProxyJump gate\", which takes the program "
          "ssh, and the program ssh is not installed here");
  }
  SUBCASE("and what ssh says when it cannot is told") {
    write_file(gate.path("authorized_keys"), "");
    const std::string text = refusal(target, 15s);
    CHECK(text.starts_with("cannot reach h1: ssh ended with exit code 255: "));
    CHECK(contains(text, "Permission denied"));
    CHECK(text.ends_with(" (its ssh configuration has \"ProxyJump gate\")"));
  }
  SUBCASE("and that new keys are not taken from it is told") {
    write_file(gate.path("known_hosts"), "");
    target.accept_new_host_keys = true;
    const std::string text = refusal(target, 15s);
    CHECK(contains(text, "--accept-new-host-keys does not reach what ssh jumps through: "));
  }
}

TEST_CASE("b5: a login by certificate works") {
  const TemporaryFolder folder;
  run_program({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "ca"});
  SshServer::Options options;
  options.extra = "TrustedUserCAKeys " + (folder / "ca.pub") + "\n";
  const SshServer server(options);
  write_file(server.path("authorized_keys"), "");
  run_program({"ssh-keygen", "-q", "-s", folder / "ca", "-I", "x", "-n", server.target("").user,
               server.path("user.pub")});
  SUBCASE("of a file that the configuration names") {
    check_works(configured(server, basics(server) + place(server) + "CertificateFile " +
                                       server.path("user-cert.pub") + "\n"));
  }
  // libssh is refused with the key alone; ssh finds the certificate beside it.
  SUBCASE("of a file that nobody names") {
    check_works(configured(server, basics(server) + place(server)));
  }
}

TEST_CASE("b5: a host known by its certificate alone is trusted") {
  const TemporaryFolder folder;
  run_program({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "ca"});
  SshServer::Options options;
  options.port = free_port("127.0.0.2");
  const SshServer keys(options);
  run_program({"ssh-keygen", "-q", "-s", folder / "ca", "-I", "x", "-h", "-n", "127.0.0.2",
               keys.path("host_ed25519.pub")});
  options.extra = "HostKey " + keys.path("host_ed25519") + "\nHostCertificate " +
                  keys.path("host_ed25519-cert.pub") + "\n";
  options.port = 0;
  const SshServer server(options);
  write_file(server.path("known_hosts"),
             "@cert-authority [127.0.0.*]:* " + file_text(folder / "ca.pub"));
  check_works(configured(server, basics(server) + place(server)));
  SUBCASE("and a revoked key is refused, though it stands there too") {
    std::ofstream(server.path("known_hosts"))
        << server.known_hosts_line("ed25519") << "@revoked * "
        << file_text(server.path("host_ed25519.pub")) << "@revoked * "
        << file_text(keys.path("host_ed25519.pub"));
    CHECK(contains(refusal(configured(server, basics(server) + place(server)), 15s), "revoked"));
  }
}

TEST_CASE("b6: the configuration means what ssh -G says") {
  const SshServer server;
  const std::string good = basics(server) + place(server);
  SUBCASE("with Match final and originalhost") {
    check_works(configured(server, "Match originalhost other\n Port 9\nMatch originalhost inner\n" +
                                       place(server) + "Match final host nobody\n User nobody\n" +
                                       "Match all\n" + basics(server)));
  }
  SUBCASE("with Match exec") {
    check_works(configured(server, "Match exec \"test %n = inner\"\n" + good));
  }
  SUBCASE("with a line longer than a buffer") {
    const std::string names = std::string(3000, 'x') + ",ProxyCommand,Port";
    check_works(
        configured(server, "Match host " + names + "\nProxyCommand false\nMatch all\n" + good));
  }
  SUBCASE("with an included file") {
    write_file(server.path("more"), good);
    check_works(configured(server, "Include " + server.path("mo*") + "\n"));
  }
  SUBCASE("with a name of its own for the host's key") {
    const std::string key = file_text(server.path("host_ed25519.pub"));
    write_file(server.path("known_hosts"), "the-inner-one " + key);
    check_works(configured(server, good + "HostKeyAlias the-inner-one\n"));
  }
  SUBCASE("with algorithms, the known one last") {
    check_works(configured(server, good + "HostKeyAlgorithms rsa-sha2-512,ssh-ed25519\n" +
                                       "Ciphers aes256-ctr\nMACs hmac-sha2-256\n" +
                                       "KexAlgorithms curve25519-sha256\n"));
  }
}

TEST_CASE("a configuration that ssh does not take is refused with its line") {
  const SshServer server;
  const std::string text =
      refusal(configured(server, "Host inner\n Prot 22\n" + basics(server)), 10s);
  CHECK(text.starts_with("cannot reach h1: the ssh configuration cannot be used: "));
  CHECK(contains(text, "line 2: Bad configuration option: prot"));
}

TEST_CASE("a configuration that takes for ever is given up") {
  const SshServer server;
  SshTarget target = configured(server, "Match exec \"sleep 100\"\n Port 9\n");
  target.deadline = now() + 1s;
  CHECK(contains(refusal(target, 3s), "the ssh configuration was not read within"));
}

TEST_CASE("without the program ssh a plain configuration is understood all the same") {
  const SshServer server;
  const Variable path("PATH", server.path("nowhere"));
  const std::string good = basics(server) + place(server);
  check_works(configured(server, "Host other\n Port 9\nHost in* !x\n" + good + "Port 9\n"));
  const std::string text = refusal(configured(server, "\nMatch host inner\n" + good), 5s);
  CHECK(contains(text, "has \"Match host inner\" at " + server.path("config") +
                           " line 2, which takes the program ssh, and that is not installed here"));
}

TEST_CASE("b1: a login that ssh is refused too is told with what was offered") {
  const SshServer server;
  write_file(server.path("authorized_keys"), "");
  const std::string text = refusal(configured(server, basics(server) + place(server)), 15s);
  CHECK(contains(text, " refuses the login of user "));
  CHECK(contains(text, "it was offered " + server.path("user")));
  CHECK(contains(text, "the server accepts publickey"));
  CHECK(text.ends_with("; the program ssh is refused, too"));
}

TEST_CASE("c7: over the program ssh, too, a name that does not exist is waited for less long") {
  const std::string name = "ssh: Could not resolve hostname x: ";
  CHECK(openssh_may_recover(255, name + "Temporary failure in name resolution", true));
  CHECK(openssh_may_recover(255, name + "Name or service not known", false));
  CHECK_FALSE(openssh_may_recover(255, name + "Name or service not known", true));
  CHECK(end_of_patience(Time(1s), Time(61s)) == Time(11s));
}

TEST_CASE("c7: over the program ssh, too, an sshd that is not up yet is waited for") {
  SshServer::Options options;
  options.port = free_port("127.0.0.2");
  std::unique_ptr<SshServer> server = std::make_unique<SshServer>(options);
  SshTarget target = server->target("echo hello; exec cat");
  const TemporaryFolder keys;
  for (const char* name : {"user", "known_hosts"}) {
    write_file(keys / name, file_text(server->path(name)));
  }
  server.reset();
  target.known_hosts = keys / "known_hosts";
  target.identity = keys / "user";
  target.accept_new_host_keys = true;
  write_file(target.known_hosts, "");
  auto channel = start_openssh_channel(target);
  REQUIRE(channel.ok());
  Driver driver(std::move(*channel));
  const bool tried = driver.run(
      10s, [&] { return contains(driver.channel().waiting_for(now()), "Connection refused"); });
  REQUIRE(tried);
  server = std::make_unique<SshServer>(options);
  write_file(server->path("authorized_keys"),
             run_program({"ssh-keygen", "-y", "-f", target.identity}));
  const bool there = driver.run(20s, [&] { return driver.received == "hello\n"; });
  INFO(driver.channel().reason());
  CHECK(there);
}
