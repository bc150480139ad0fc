// The user's discovery script, and what is believed of what it prints: N36, and I2, I3 of hosts.
#include "launcher/discovery.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <csignal>

#include "supervisor/host_list.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

std::string names(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) {
    text += (text.empty() ? "" : " ") + host.name + ":" + std::to_string(host.slots);
  }
  return text;
}

// What one run comes to: hosts, or "! " and the error.
std::string found(const std::string& command) {
  const auto hosts = discover_hosts(command);
  return hosts ? names(*hosts) : "! " + hosts.error().text;
}

std::vector<Host> hosts(std::initializer_list<const char*> printed) {
  std::vector<Host> all;
  for (const char* name : printed) {
    Host host;
    host.name = name;
    all.push_back(host);
  }
  return all;
}

}  // namespace

TEST_CASE("a discovery script prints lines or tables, and its order stays") {
  CHECK(found("printf 'h2:2\\nh1\\n\\n# none\\nh3 slots=4\\n'") == "h2:2 h1:1 h3:4");
  CHECK(found("printf '[[host]]\\nname = \"a\"\\nslots = 3\\n'") == "a:3");
  CHECK(found("printf 'h1:2\\r\\nh2:2'") == "h1:2 h2:2");
}

TEST_CASE("n36: what is no list of hosts is one sentence") {
  struct Row {
    const char *command, *expected;
  };
  const Row rows[] = {
      {"echo h1; echo no cloud today >&2; exit 3",
       "! the discovery script ended with exit code 3: no cloud today"},
      {"kill -9 $$", "! the discovery script was killed by SIGKILL"},
      {"/no/such/script",
       "! the discovery script ended with exit code 127: sh: 1: /no/such/script: not found"},
      {"yes h1:1 | head -c 10000000; sleep 100",
       "! the discovery script printed more than 1 MiB and was killed"},
      {"yes", "! the discovery script printed more than 1 MiB and was killed"},
      {"yes >&2", "! the discovery script did not end within 5 s and was killed"},
      {"printf 'h1\\nh2\\nh1\\n'",
       "! output of the discovery script:3:1: host 'h1' is named twice"},
      {"printf 'h1\\0h2\\n'", "! output of the discovery script:1:1: "},
      {"echo 'h1 has gone for lunch'", "! output of the discovery script:1:4: unknown word 'has'"},
      {"echo 'h1 slots=auto'",
       "! output of the discovery script:1:1: the slots of h1 are \"auto\""},
      {"printf '[[host]]\\nname = \"a\"\\n[job]\\nnp = 3\\n'",
       "! output of the discovery script:4:1: a [job] table: expected hosts only"},
      {"true", "! output of the discovery script"},
  };
  for (const Row& row : rows) {
    const std::string text = found(row.command);
    CHECK_MESSAGE(text.starts_with(row.expected), row.command, ": ", text);
  }
}

TEST_CASE("n36: a script that hangs is killed with all that it started, and run again") {
  char path[] = "/tmp/hvd-discovery-XXXXXX";
  const Fd file(mkstemp(path));
  REQUIRE(file);
  Discovery discovery("sleep 1000 & echo $! >" + std::string(path) + "; echo h1; wait", Time{});
  const Time start = now();
  std::optional<Result<std::vector<Host>>> news;
  while (!news && now() < start + 20s) {
    pollfd ready{discovery.fd(), POLLIN, 0};
    poll(&ready, 1, poll_timeout(discovery.deadline(), now()));
    news = discovery.advance(now());
  }
  REQUIRE(news);
  REQUIRE_FALSE(*news);
  CHECK(news->error().text == "the discovery script did not end within 5 s and was killed");
  const Result<std::string> text = read_file(path, 100);
  unlink(path);
  REQUIRE(text);
  const pid_t child = std::stoi(*text);
  const Time limit = now() + 10s;
  while (kill(child, 0) == 0 && process_state(child) != 'Z' && now() < limit) {
    poll(nullptr, 0, 5);
  }
  CHECK((kill(child, 0) != 0 || process_state(child) == 'Z'));
  // Reaped, it rests, and then has another run.
  while (discovery.deadline() == Time::max() && now() < limit) {
    poll(nullptr, 0, 5);
    CHECK_FALSE(discovery.advance(now()));
  }
  CHECK(discovery.deadline() <= now() + 1s);
}

TEST_CASE("a host is believed to come or go when the list has held still") {
  HostList list(hosts({"h1", "h2"}));
  Time at{1000s};
  list.see(hosts({"h3", "h1", "h2", "h4"}), at);
  CHECK(list.deadline() == at + 5s);
  CHECK(list.settle(at + 4999ms).come.empty());
  const HostList::Change came = list.settle(at + 5s);
  CHECK(names(came.come) == "h3:1 h4:1");
  CHECK(came.gone.empty());
  CHECK_FALSE(list.deadline());
  at += 100s;
  list.see(hosts({"h1", "h3", "h4"}), at);
  list.see(hosts({"h1", "h3", "h4"}), at + 4s);
  const HostList::Change went = list.settle(at + 5s);
  CHECK(names(went.gone) == "h2:1");
  CHECK(went.come.empty());
  // What was seen once too few moves nothing.
  at += 100s;
  list.see(hosts({"h1"}), at);
  list.see(hosts({"h1", "h3", "h4"}), at + 1s);
  CHECK_FALSE(list.deadline());
  CHECK(list.settle(at + 1h).gone.empty());
}

TEST_CASE("n36: a list that flips between eight hosts and two moves nothing") {
  const auto eight = hosts({"h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"});
  const auto two = hosts({"h1", "h2"});
  for (const Duration period : {1s, 4s, 6s, 11s}) {
    HostList list(eight);
    Time at{1000s};
    int changes = 0;
    for (int i = 0; i < 600; ++i, at += 1s) {
      list.see(i / (period / 1s) % 2 == 0 ? two : eight, at);
      const HostList::Change change = list.settle(at);
      changes += change.come.empty() && change.gone.empty() ? 0 : 1;
    }
    // Slow flips are believed until they are seen to be flips.
    CHECK(changes <= 2);
    // At rest again, the truth is believed in the end.
    for (int i = 0; i < 400; ++i, at += 1s) {
      list.see(two, at);
      static_cast<void>(list.settle(at));
    }
    list.see(eight, at);
    CHECK(names(list.settle(at + 5min).come) == "h3:1 h4:1 h5:1 h6:1 h7:1 h8:1");
  }
}
