// Hosts that cannot be reached, keys that are wrong, logins that are refused: each is one sentence
// within the deadline, and the loop never waits.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "launcher/resolve.h"
#include "launcher/ssh_channel.h"
#include "tests/ssh/ssh_server.h"

using namespace hvd;
using namespace hvd::testing;
using namespace std::chrono_literals;

namespace {

constexpr Duration kNoWait = 50ms;

// Dials until refused, and gives the sentence.
std::string refusal(const SshTarget& target) {
  const Time start = now();
  Driver driver(target);
  REQUIRE(driver.until_closed(target.deadline - start + 2s));
  CHECK(driver.channel().end() == ChannelEnd::refused);
  CHECK(now() < target.deadline + 500ms);
  CHECK(driver.longest_wait < kNoWait);
  return driver.channel().reason();
}

void check_opens(SshTarget target) {
  // One that stays, so that the channel cannot be open and closed again between two looks.
  target.command = "exec cat";
  Driver driver(target);
  const bool open = driver.until_open();
  INFO(driver.channel().reason());
  CHECK(open);
  CHECK(driver.longest_wait < kNoWait);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string fingerprint(const std::string& public_key_file) {
  const std::string text = run_program({"ssh-keygen", "-l", "-f", public_key_file});
  const size_t start = text.find("SHA256:");
  return text.substr(start, text.find(' ', start) - start);
}

// Sets an environment variable for one test.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    const char* old = getenv(name);
    if (old != nullptr) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

}  // namespace

TEST_CASE("nobody listens at the port") {
  SshTarget target = SshServer().target("true");
  target.port = free_port("127.0.0.2");
  target.deadline = now() + 1s;
  const std::string port = std::to_string(target.port);
  CHECK(refusal(target).starts_with("cannot reach h1: 127.0.0.2 port " + port +
                                    ": Connection refused (tried again for "));
}

TEST_CASE("b9: a port that accepts and says nothing") {
  std::mutex mutex;
  std::vector<Fd> held;
  const Listener listener([&](Fd socket) {
    const std::lock_guard lock(mutex);
    held.push_back(std::move(socket));
  });
  const std::string text = refusal(listener.target());
  CHECK(text.starts_with("cannot reach h3: 127.0.0.2 port " + std::to_string(listener.port()) +
                         " accepts connections but sent no SSH banner within "));
}

TEST_CASE("a server of something else is quoted") {
  const Listener listener([](Fd socket) {
    static_cast<void>(write_all(socket.get(), "HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n"));
    shutdown(socket.get(), SHUT_WR);
    poll(nullptr, 0, 200);
  });
  CHECK(contains(refusal(listener.target()),
                 "is no SSH server: it says \"HTTP/1.1 400 Bad Request\""));
}

TEST_CASE("a port that closes every connection is tried again, then given up") {
  std::atomic<int> connections = 0;
  const Listener listener([&](Fd socket) {
    ++connections;
    socket.reset();
  });
  const std::string text = refusal(listener.target());
  INFO(text);
  CHECK(contains(text, "closed the connection"));
  CHECK(contains(text, "tried again for"));
  CHECK(connections >= 3);
}

TEST_CASE("a try that the deadline cuts short leaves the reason to the one before") {
  std::vector<Fd> held;
  std::atomic<int> connections = 0;
  const Listener listener([&](Fd socket) {
    if (++connections > 1) held.push_back(std::move(socket));
  });
  SshTarget target = listener.target();
  target.deadline = now() + 900ms;
  const std::string text = refusal(target);
  INFO(text);
  CHECK(contains(text, "closed the connection"));
  CHECK(contains(text, "tried again for"));
}

TEST_CASE("b11: a server too busy for the first connections gets more of them") {
  const int port = free_port("127.0.0.2");
  SshServer::Options options;
  options.port = port;
  const SshServer server(options);
  // What a flooded sshd does: says so, or just closes. Then the connection is passed on.
  std::atomic<int> connections = 0;
  const Listener listener([&](Fd socket) {
    const int number = ++connections;
    if (number == 1) static_cast<void>(write_all(socket.get(), "Exceeded MaxStartups\r\n"));
    if (number <= 2) return;
    const Fd onward(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage to{};
    auto found = resolve("127.0.0.2", static_cast<uint16_t>(port));
    const Address address = std::get<std::vector<Address>>(found).at(0);
    to = address.storage;
    if (connect(onward.get(), reinterpret_cast<sockaddr*>(&to), address.length) != 0) return;
    pollfd fds[2] = {{socket.get(), POLLIN, 0}, {onward.get(), POLLIN, 0}};
    while (poll(fds, 2, 10'000) > 0) {
      for (int i = 0; i < 2; ++i) {
        if (fds[i].revents == 0) continue;
        char block[4096];
        const ssize_t n = recv(fds[i].fd, block, sizeof block, 0);
        if (n <= 0) return;
        if (!write_all(fds[1 - i].fd, std::string_view(block, static_cast<size_t>(n)))) return;
      }
    }
  });
  SshTarget target = server.target("echo hello");
  target.port = listener.port();
  write_file(server.path("known_hosts"), "[127.0.0.2]:" + std::to_string(listener.port()) + " " +
                                             file_text(server.path("host_ed25519.pub")));
  Driver driver(target);
  REQUIRE(driver.until_closed());
  CHECK(driver.channel().end() == ChannelEnd::ended);
  CHECK(driver.received == "hello\n");
  CHECK(connections == 3);
}

TEST_CASE("a name that does not exist") {
  SshTarget target = SshServer().target("true");
  target.address = "nosuch.invalid";
  target.deadline = now() + 1s;
  CHECK(
      refusal(target).starts_with("cannot reach h1: the name nosuch.invalid cannot be resolved: "));
}

TEST_CASE("a host key that is not known") {
  const SshServer server;
  SshTarget target = server.target("true");
  target.known_hosts = server.path("empty");
  write_file(target.known_hosts, "");
  SUBCASE("is refused with its fingerprint") {
    const std::string text = refusal(target);
    CHECK(text.starts_with("the host key of h1 (127.0.0.2 port "));
    CHECK(contains(text, ") is unknown: it shows ssh-ed25519 " +
                             fingerprint(server.path("host_ed25519.pub"))));
    CHECK(contains(text, "--accept-new-host-keys"));
    CHECK(file_text(target.known_hosts).empty());
  }
  SUBCASE("is refused whatever the ssh configuration says") {
    target.config = server.path("config");
    write_file(target.config, "StrictHostKeyChecking no\n");
    CHECK(contains(refusal(target), "is unknown"));
  }
  SUBCASE("is refused when there is no known_hosts at all") {
    target.known_hosts = server.path("missing");
    CHECK(contains(refusal(target), "is unknown"));
  }
  SUBCASE("is accepted and recorded on request") {
    target.accept_new_host_keys = true;
    check_opens(target);
    target.accept_new_host_keys = false;
    check_opens(target);
  }
}

TEST_CASE("b7: a host key that changed is refused, accept-new or not") {
  const SshServer server;
  const SshServer other;
  SshTarget target = server.target("true");
  target.accept_new_host_keys = true;
  const std::string at = "[127.0.0.2]:" + std::to_string(server.port()) + " ";
  const std::string stale = at + file_text(other.path("host_ed25519.pub"));
  write_file(target.known_hosts, stale);
  const std::string text = refusal(target);
  CHECK(contains(
      text, " has changed: it shows ssh-ed25519 " + fingerprint(server.path("host_ed25519.pub"))));
  CHECK(contains(text, "ssh-keygen -f " + target.known_hosts +
                           " -R '[127.0.0.2]:" + std::to_string(server.port()) + "'"));
  CHECK(file_text(target.known_hosts) == stale);
}

TEST_CASE("b7: a host known by a key of another type is refused, accept-new or not") {
  SshServer::Options options;
  options.host_key_types = {"ecdsa"};
  const SshServer other(options);
  const SshServer server;
  SshTarget target = server.target("true");
  target.accept_new_host_keys = true;
  write_file(target.known_hosts, "[127.0.0.2]:" + std::to_string(server.port()) + " " +
                                     file_text(other.path("host_ecdsa.pub")));
  CHECK(contains(refusal(target), " is of another type than the one in "));
}

TEST_CASE("b8: any of the server's keys in known_hosts is enough, hashed or not") {
  SshServer::Options options;
  options.host_key_types = {"rsa", "ecdsa", "ed25519"};
  const SshServer server(options);
  for (const std::string type : {"rsa", "ecdsa", "ed25519"}) {
    CAPTURE(type);
    SshTarget target = server.target("true");
    write_file(target.known_hosts, server.known_hosts_line(type));
    check_opens(target);
    run_program({"ssh-keygen", "-q", "-H", "-f", target.known_hosts});
    CHECK_FALSE(contains(file_text(target.known_hosts), "127.0.0.2"));
    target.deadline = now() + 20s;
    check_opens(target);
  }
}

TEST_CASE("a key that the server does not accept") {
  const Variable no_agent("SSH_AUTH_SOCK", "");
  const SshServer server;
  SshTarget target = server.target("true");
  const std::string identity = server.path("stranger");
  run_program({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity});
  target.identity = identity;
  std::string text = refusal(target);
  CHECK(text.starts_with("h1 (127.0.0.2 port " + std::to_string(server.port()) +
                         ") refuses the login of user " + target.user + ": it was offered " +
                         identity));
  CHECK(contains(text, "; the server accepts publickey"));
}

TEST_CASE("b1: a server that takes passwords only") {
  const Variable no_agent("SSH_AUTH_SOCK", "");
  SshServer::Options options;
  options.extra = "PubkeyAuthentication no\nPasswordAuthentication yes\n";
  const SshServer server(options);
  const std::string text = refusal(server.target("true"));
  CHECK(contains(text, " refuses the login of user "));
  CHECK(contains(text, "; the server accepts password"));
}

TEST_CASE("a key file that is missing, no key, or has a passphrase") {
  const Variable no_agent("SSH_AUTH_SOCK", "");
  const SshServer server;
  SshTarget target = server.target("true");
  target.identity = server.path("nothing");
  CHECK(contains(refusal(target),
                 "the key file " + target.identity + " cannot be read: No such file or directory"));
  write_file(target.identity, "no key\n");
  CHECK(contains(refusal(target), "the key file " + target.identity + " holds no private key"));
  target.identity = server.path("locked");
  run_program({"ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", target.identity});
  CHECK(contains(refusal(target), target.identity + " has a passphrase: add it to the ssh-agent"));
}

TEST_CASE("a key file without its .pub does, and none is written") {
  const Variable no_agent("SSH_AUTH_SOCK", "");
  const SshServer server;
  SshTarget target = server.target("true");
  target.identity = "";
  target.config = server.path("config");
  write_file(target.config, "IdentityFile " + server.path("user") + "\n");
  REQUIRE(unlink(server.path("user.pub").c_str()) == 0);
  check_opens(target);
  CHECK(access(server.path("user.pub").c_str(), F_OK) != 0);
}

TEST_CASE("a .pub file that is damaged does not matter") {
  const Variable no_agent("SSH_AUTH_SOCK", "");
  const SshServer server;
  SshTarget target = server.target("true");
  target.identity = "";
  target.config = server.path("config");
  write_file(target.config, "IdentityFile " + server.path("user") + "\n");
  write_file(server.path("user.pub"), "damaged");
  check_opens(target);
}

TEST_CASE("a server that ends the login after too many keys") {
  SshServer::Options options;
  options.extra = "MaxAuthTries 1\n";
  const SshServer server(options);
  SshTarget target = server.target("true");
  target.identity = server.path("stranger");
  run_program({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", target.identity});
  const std::string text = refusal(target);
  CAPTURE(text);
  CHECK(contains(text, "Too many authentication failures"));
  CHECK(contains(text, "it was offered " + target.identity));
}

TEST_CASE("the keys of an ssh-agent are offered") {
  const SshServer server;
  const std::string socket = server.path("agent");
  const Running agent({"ssh-agent", "-D", "-a", socket}, server.path("agent.log"));
  const Variable variable("SSH_AUTH_SOCK", socket);
  const Time limit = now() + 10s;
  while (access(socket.c_str(), F_OK) != 0 && now() < limit) poll(nullptr, 0, 5);
  SshTarget target = server.target("true");
  target.identity = "";
  SUBCASE("and let us in") {
    run_program({"ssh-add", "-q", server.path("user")});
    check_opens(target);
  }
  SUBCASE("and are counted when refused") {
    for (const std::string name : {"a", "b"}) {
      run_program({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", server.path(name)});
      run_program({"ssh-add", "-q", server.path(name)});
    }
    CHECK(contains(refusal(target), "it was offered 2 keys of the ssh-agent"));
  }
}

TEST_CASE("an ssh-agent that hangs is left out") {
  const SshServer server;
  const std::string path = server.path("agent");
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  path.copy(at.sun_path, sizeof at.sun_path - 1);
  REQUIRE(bind(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  REQUIRE(listen(socket.get(), 4) == 0);
  const Variable variable("SSH_AUTH_SOCK", path);
  SshTarget target = server.target("true");
  target.identity = "";
  target.config = server.path("config");
  SUBCASE("and the key files do") {
    write_file(target.config, "IdentityFile " + server.path("user") + "\n");
    check_opens(target);
  }
  SUBCASE("and named when nothing else lets us in") {
    write_file(target.config, "");
    CHECK(contains(refusal(target), "the ssh-agent at " + path + " does not answer"));
  }
}

TEST_CASE("host, port, user and key come from the ssh configuration") {
  const SshServer server;
  SshTarget target = server.target("true");
  const std::string config = "Host gpu-one\n  HostName 127.0.0.2\n  Port " +
                             std::to_string(server.port()) + "\n  User " + target.user +
                             "\n  IdentityFile " + server.path("other") + "\n  IdentityFile " +
                             server.path("user") + "\n";
  target.address = "gpu-one";
  target.port = 0;
  target.user = "";
  target.identity = "";
  target.config = server.path("config");
  write_file(target.config, config);
  SUBCASE("as they stand") {
    check_opens(target);
  }
  SUBCASE("but what leads through another host is refused by name") {
    write_file(target.config, config + "  ProxyJump bastion\n");
    CHECK(contains(refusal(target),
                   "its ssh configuration has \"ProxyJump bastion\", which takes "
                   "the program ssh"));
  }
  SUBCASE("and what the target says wins") {
    write_file(target.config, "Port 9\nUser nobody\n" + config);
    target.port = server.port();
    target.user = server.target("").user;
    check_opens(target);
  }
}

TEST_CASE("a server over IPv6") {
  if (access("/proc/net/if_inet6", R_OK) != 0) {
    not_run("ssh: IPv6: this machine has no IPv6");
    return;
  }
  SshServer::Options options;
  options.extra = "ListenAddress [::1]\n";
  const SshServer server(options);
  SshTarget target = server.target("exec cat");
  target.address = "::1";
  write_file(target.known_hosts, "[::1]:" + std::to_string(server.port()) + " " +
                                     file_text(server.path("host_ed25519.pub")));
  Driver driver(target);
  const bool open = driver.until_open();
  INFO(driver.channel().reason());
  REQUIRE(open);
  CHECK(driver.channel().peer_address() == "::1");
}
