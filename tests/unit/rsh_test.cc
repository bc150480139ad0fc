// The words of --rsh.
#include "launcher/rsh.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "launcher/openssh.h"

using namespace hvd;

namespace {

using Words = std::vector<std::string>;

Words words(std::string_view command) {
  const auto parsed = parse_rsh(command);
  INFO(command);
  REQUIRE(parsed.ok());
  return *parsed;
}

std::string error(std::string_view command) {
  const auto parsed = parse_rsh(command);
  INFO(command);
  REQUIRE_FALSE(parsed.ok());
  return parsed.error().text;
}

Host host() {
  Host host;
  host.name = "gpu1";
  host.address = "10.0.0.1";
  host.port = 2222;
  host.user = "train";
  return host;
}

}  // namespace

TEST_CASE("a command is cut at blanks, quotes keep them") {
  CHECK(words("kubectl exec -i {host} --") == Words{"kubectl", "exec", "-i", "{host}", "--"});
  CHECK(words("  a\tb  ") == Words{"a", "b"});
  CHECK(words("a 'b  c' \"d e\"f") == Words{"a", "b  c", "d ef"});
  CHECK(words("a '' \"\"") == Words{"a", "", ""});
  CHECK(words(R"(a\ b "c\"d" 'e\' f\\g)") == Words{"a b", "c\"d", "e\\", "f\\g"});
  CHECK(words("a $HOME `id` ;|&<>*~") == Words{"a", "$HOME", "`id`", ";|&<>*~"});
}

TEST_CASE("no name reaches ssh as an option") {
  SshTarget target;
  target.address = "-oProxyCommand=evil";
  target.user = "-oLocalCommand=evil";
  target.identity = "-oOther=evil";
  target.command = "-oThird=evil";
  const Words argv = openssh_argv(target);
  const auto value_of = [&](const char* option) {
    return *(std::find(argv.begin(), argv.end(), option) + 1);
  };
  // The value of an option is none itself; what follows `--` is none either.
  CHECK(value_of("-l") == target.user);
  CHECK(value_of("-i") == target.identity);
  CHECK(Words(argv.end() - 3, argv.end()) == Words{"--", target.address, target.command});
  // Nothing asks, and nothing of the user's own setting weakens the check of host keys.
  CHECK(std::find(argv.begin(), argv.end(), "BatchMode=yes") != argv.end());
  CHECK(std::find(argv.begin(), argv.end(), "StrictHostKeyChecking=yes") != argv.end());
}

TEST_CASE("what is no command is said") {
  for (const char* none : {"", "  ", "''", "'' x"}) {
    CHECK(error(none).find("expected a command") != std::string::npos);
  }
  for (const char* open : {"a 'b", "a \"b", "a b\\", "a \"b\\"}) {
    CHECK(error(open) == "expected an end to its quotes");
  }
  for (const char* place : {"a {hots}", "a {", "a {host", "a {}"}) {
    CHECK(error(place) == "expected {host}, {user} or {port} in braces");
  }
}

TEST_CASE("places are filled, and without {host} the host is the last word") {
  const auto fill = [](std::string_view command, const Host& to) {
    return fill_rsh(words(command), to, "me");
  };
  CHECK(fill("x -p{port} {user}@{host} --", host()) ==
        Words{"x", "-p2222", "train@10.0.0.1", "--"});
  CHECK(fill("docker exec -i", host()) == Words{"docker", "exec", "-i", "10.0.0.1"});
  Host plain;
  plain.name = "h1";
  CHECK(fill("x {host}{host} {user} {port}", plain) == Words{"x", "h1h1", "me", "22"});
}
