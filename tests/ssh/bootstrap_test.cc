// The way to a running agent: the conversation alone, then through a real sshd and real shells with
// a small script in place of the agent.
#include "launcher/bootstrap.h"

#include <doctest/doctest.h>
#include <gnu/libc-version.h>
#include <openssl/evp.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/build_id.h"
#include "launcher/command_channel.h"
#include "launcher/openssh.h"
#include "tests/ssh/ssh_server.h"

using namespace hvd;
using namespace hvd::testing;
using namespace std::chrono_literals;

namespace {

const std::string kBuild = "0123456789abcdef0123456789abcdef01234567";

std::string machine() {
  utsname own;
  uname(&own);
  return own.machine;
}

std::string sha256(const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", digest[i]);
    text += pair;
  }
  return text;
}

// What is pushed in the tests: says its arguments, then echoes. Padded, so that it fills pipes.
AgentBinary fake_agent(const std::string& build = kBuild) {
  const std::string content =
      "#!/bin/sh\n"
      "if test \"$1\" = --version; then exit 0; fi\n"
      "echo hvdlaunch-agent-ready " +
      build +
      "\n"
      "echo \"$0 $*\"\n"
      "exec cat\n" +
      std::string(300'000, '#') + "\n";
  return {build, content, sha256(content)};
}

// One bootstrap over a real connection.
struct Session {
  Session(const SshServer& server, const std::string& arguments, AgentBinary pushed = fake_agent())
      : binary(std::move(pushed)),
        bootstrap("h1", binary.build),
        driver(server.target(bootstrap_command(binary.build, arguments))) {}
  Session(std::unique_ptr<Channel> channel, AgentBinary pushed)
      : binary(std::move(pushed)), bootstrap("h1", binary.build), driver(std::move(channel)) {}

  // Goes on until ready, failed or closed.
  void run() {
    const bool done = driver.run(20s, [this] {
      bootstrap.feed(std::exchange(driver.received, {}));
      if (bootstrap.state() == Bootstrap::State::need_binary) {
        ++pushes;
        driver.channel().send(bootstrap.push(binary));
      }
      return bootstrap.state() != Bootstrap::State::waiting ||
             driver.channel().state() == ChannelState::closed;
    });
    INFO(driver.diagnostics);
    INFO(driver.channel().reason());
    REQUIRE(done);
  }

  void check_ready() {
    run();
    INFO(bootstrap.error());
    INFO(driver.channel().reason());
    INFO(driver.diagnostics);
    REQUIRE(bootstrap.state() == Bootstrap::State::ready);
    std::string text = bootstrap.take_rest();
    driver.channel().send("first frame\n");
    const bool echoed = driver.run(10s, [&] {
      text += std::exchange(driver.received, {});
      return text.ends_with("first frame\n");
    });
    CHECK(echoed);
    first_line = text.substr(0, text.find('\n'));
  }

  std::string check_fails() {
    run();
    REQUIRE(bootstrap.state() == Bootstrap::State::failed);
    return bootstrap.error();
  }

  AgentBinary binary;
  Bootstrap bootstrap;
  Driver driver;
  int pushes = 0;
  std::string first_line;
};

// A server whose logins have their cache in `cache`, and run commands by `shell`.
SshServer::Options with_cache(const std::string& cache, const std::string& shell = "sh") {
  SshServer::Options options;
  // Nothing is to be kept outside of the test's folders.
  options.forced_command = "XDG_CACHE_HOME=" + cache +
                           " TMPDIR=/proc/none XDG_RUNTIME_DIR=/proc/none exec " + shell +
                           " -c \"$SSH_ORIGINAL_COMMAND\"";
  return options;
}

mode_t mode_of(const std::string& path) {
  struct stat st;
  REQUIRE(stat(path.c_str(), &st) == 0);
  return st.st_mode & 07777;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Bootstrap fed(const std::string& text) {
  Bootstrap bootstrap("h1", kBuild);
  bootstrap.feed(text);
  return bootstrap;
}

}  // namespace

TEST_CASE("the greeting ends the bootstrap, what follows is kept") {
  Bootstrap bootstrap("h1", kBuild);
  const std::string text = "Welcome to h1\n\nhvdlaunch-agent-ready " + kBuild + "\nframes\nmore";
  SUBCASE("in one piece") {
    bootstrap.feed(text);
  }
  SUBCASE("byte by byte") {
    for (const char c : text) bootstrap.feed(std::string(1, c));
  }
  SUBCASE("after text without a newline") {
    bootstrap.feed("prompt> " + text.substr(15));
  }
  CHECK(bootstrap.state() == Bootstrap::State::ready);
  CHECK(bootstrap.take_rest() == "frames\nmore");
}

TEST_CASE("a login that prints without end is given up") {
  CHECK(fed(std::string(60'000, 'x')).state() == Bootstrap::State::waiting);
  CHECK(contains(fed(std::string(70'000, 'x')).error(), "h1 prints too much at login"));
  Bootstrap lines("h1", kBuild);
  for (int i = 0; i < 10'000; ++i) lines.feed("a line\n");
  CHECK(contains(lines.error(), "h1 prints too much at login"));
}

TEST_CASE("what a login says last is kept") {
  CHECK(fed("Welcome\nThis account is \x1b not available.\n\n").last_skipped() ==
        "This account is ? not available.");
}

TEST_CASE("an agent of another build is refused") {
  const Bootstrap bootstrap = fed("hvdlaunch-agent-ready feedbeef\n");
  CHECK(bootstrap.error() ==
        "h1 started an agent of another build (feedbeef) than this one (" + kBuild + ")");
}

TEST_CASE("the far platform decides whether the binary is pushed") {
  const auto need = [](const std::string& platform) {
    return fed("\nhvdlaunch-agent-need " + platform + "\n");
  };
  for (const std::string libc : {"glibc 99.0", "ldd (Debian GLIBC 99.1-9) 99.1", "unknown"}) {
    CAPTURE(libc);
    CHECK(need(machine() + " " + libc).state() == Bootstrap::State::need_binary);
  }
  CHECK(need(machine() + " glibc " + gnu_get_libc_version()).state() ==
        Bootstrap::State::need_binary);
  CHECK(need("pdp11 glibc 99.0").error() ==
        "this hvdlaunch is built for " + machine() + " and cannot run on h1, which is pdp11");
  CHECK(need(machine() + " glibc 2.9").error() == "this hvdlaunch needs the C library glibc " +
                                                      needed_glibc() +
                                                      " or newer, and h1 has glibc 2.9");
  CHECK(contains(need(machine() + " musl libc (x86_64)").error(), "h1 has musl libc (x86_64)"));
}

TEST_CASE("what the binary needs is read from itself") {
  const std::string needed = needed_glibc();
  CAPTURE(needed);
  CHECK(needed.starts_with("2."));
  CHECK(std::stoi(needed.substr(2)) <= std::stoi(std::string(gnu_get_libc_version()).substr(2)));
}

TEST_CASE("the running program is what is pushed") {
  const auto binary = read_own_binary();
  REQUIRE(binary.ok());
  CHECK(binary->build == own_build_id());
  CHECK(binary->sha256 == sha256(file_text("/proc/self/exe")));
}

TEST_CASE("a far error is one sentence without control characters") {
  CHECK(fed("hvdlaunch-agent-error no \x1b[31mspace\n").error() ==
        "the agent cannot be set up on h1: no ?[31mspace");
}

TEST_CASE("a second question for the binary is an error") {
  Bootstrap bootstrap = fed("hvdlaunch-agent-need " + machine() + " glibc 99.0\n");
  const std::string header = bootstrap.push(fake_agent()).substr(0, 7);
  CHECK(header == std::to_string(fake_agent().content.size()) + " ");
  bootstrap.feed("hvdlaunch-agent-need " + machine() + " glibc 99.0\n");
  CHECK(contains(bootstrap.error(), "a second time"));
}

TEST_CASE("the command is one line that needs no care from any shell") {
  const std::string command = bootstrap_command(kBuild, "--job j-1 --host 2");
  REQUIRE(command.starts_with("exec sh -c '"));
  REQUIRE(command.ends_with("'"));
  const std::string inside = command.substr(12, command.size() - 13);
  CHECK(inside.find_first_of("'\\!\n") == std::string::npos);
}

TEST_CASE("the first login pushes, the second finds the binary") {
  for (const std::string shell : {"sh", "bash", "dash", "tcsh", "fish"}) {
    CAPTURE(shell);
    if (!have_program(shell)) {
      not_run("ssh: push through " + std::string(shell) + ": it is not installed");
      continue;
    }
    const TemporaryFolder folder;
    // Blanks in the path are part of the test.
    const std::string cache = folder / "my cache";
    const SshServer server(with_cache("\"" + cache + "\"", shell));
    const std::string binary = cache + "/hvdlaunch/" + kBuild + "/hvdlaunch";
    for (int login = 0; login < 2; ++login) {
      CAPTURE(login);
      Session session(server, "--job j-1 --host 2");
      session.check_ready();
      CHECK(session.pushes == (login == 0 ? 1 : 0));
      CHECK(session.first_line == "/proc/self/fd/9 agent --job j-1 --host 2");
      CHECK(session.driver.diagnostics.empty());
    }
    CHECK(file_text(binary) == fake_agent().content);
    CHECK(mode_of(binary) == 0700);
    CHECK(mode_of(cache + "/hvdlaunch") == 0700);
    CHECK(mode_of(cache + "/hvdlaunch/" + kBuild) == 0700);
  }
}

TEST_CASE("banners and talkative start-up files do no harm") {
  const TemporaryFolder folder;
  SshServer::Options options = with_cache(folder.path());
  write_file(folder / "banner", "Authorized use only\n");
  options.extra = "Banner " + (folder / "banner") + "\n";
  options.forced_command =
      "echo Welcome; seq 1000; printf \"no newline here\"; " + options.forced_command;
  const SshServer server(options);
  for (int login = 0; login < 2; ++login) {
    CAPTURE(login);
    Session(server, "").check_ready();
  }
}

TEST_CASE("only the newest three builds are kept") {
  const TemporaryFolder folder;
  const SshServer server(with_cache(folder.path()));
  std::filesystem::create_directories(folder / "hvdlaunch/not-ours");
  for (const std::string build : {"aa01", "aa02", "aa03", "aa04", "aa05"}) {
    Session(server, "", fake_agent(build)).check_ready();
  }
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "hvdlaunch")) {
    left.push_back(entry.path().filename());
  }
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"aa03", "aa04", "aa05", "not-ours"});
}

TEST_CASE("a binary that arrives damaged is not used") {
  const TemporaryFolder folder;
  const SshServer server(with_cache(folder.path()));
  AgentBinary binary = fake_agent();
  binary.sha256[0] = binary.sha256[0] == '0' ? '1' : '0';
  Session session(server, "", binary);
  CHECK(contains(session.check_fails(), "arrived damaged"));
  session.driver.until_closed();
  CHECK(std::filesystem::is_empty(folder / ("hvdlaunch/" + kBuild)));
}

TEST_CASE("a push that is cut off leaves nothing") {
  const TemporaryFolder folder;
  const SshServer server(with_cache(folder.path()));
  const std::string build_folder = folder / ("hvdlaunch/" + kBuild);
  {
    Session session(server, "");
    REQUIRE(session.driver.run(20s, [&] {
      session.bootstrap.feed(std::exchange(session.driver.received, {}));
      return session.bootstrap.state() == Bootstrap::State::need_binary;
    }));
    const std::string all = session.bootstrap.push(session.binary);
    session.driver.channel().send(std::string_view(all).substr(0, 100'000));
    REQUIRE(session.driver.run(10s, [&] {
      std::error_code none;
      return session.driver.channel().unsent() == 0 &&
             std::filesystem::exists(build_folder, none) &&
             !std::filesystem::is_empty(build_folder, none);
    }));
  }
  const Time limit = now() + 10s;
  while (!std::filesystem::is_empty(build_folder) && now() < limit) usleep(5000);
  CHECK(std::filesystem::is_empty(build_folder));
}

TEST_CASE("a cache that cannot be made") {
  const TemporaryFolder folder;
  write_file(folder / "file", "in the way\n");
  const SshServer server(with_cache(folder / "file"));
  Session session(server, "");
  const std::string error = session.check_fails();
  CHECK(error.starts_with("the agent cannot be set up on h1: "));
  CHECK(contains(error, "Not a directory"));
}

TEST_CASE("a cached file that was swapped or changed is not run, but pushed anew") {
  const TemporaryFolder folder;
  const SshServer server(with_cache(folder.path()));
  Session(server, "").check_ready();
  const std::string binary = folder / ("hvdlaunch/" + kBuild + "/hvdlaunch");
  const std::string other = "#!/bin/sh\necho hvdlaunch-agent-ready " + kBuild + "\necho swapped\n";
  SUBCASE("another file in its place") {
    write_file(folder / "other", other);
    REQUIRE(chmod((folder / "other").c_str(), 0700) == 0);
    REQUIRE(rename((folder / "other").c_str(), binary.c_str()) == 0);
  }
  SUBCASE("the same file with other content") {
    std::ofstream(binary) << other;
  }
  SUBCASE("a link to another") {
    write_file(folder / "other", other);
    REQUIRE(chmod((folder / "other").c_str(), 0700) == 0);
    REQUIRE(unlink(binary.c_str()) == 0);
    REQUIRE(symlink((folder / "other").c_str(), binary.c_str()) == 0);
  }
  Session session(server, "");
  session.check_ready();
  CHECK(session.pushes == 1);
  CHECK(session.first_line == "/proc/self/fd/9 agent");
  CHECK(file_text(binary) == fake_agent().content);
}

TEST_CASE("where the home cannot hold the agent, the next folder does") {
  const TemporaryFolder folder;
  const std::string cache = folder / "cache";
  std::filesystem::create_directory(cache);
  const auto mounted = [&](unsigned long flags, const char* size) {
    return getuid() == 0 && mount("tmpfs", cache.c_str(), "tmpfs", flags, size) == 0;
  };
  bool is_mounted = false;
  SUBCASE("it is in the way") {
    std::filesystem::remove(cache);
    write_file(cache, "");
  }
  SUBCASE("it is full") {
    is_mounted = mounted(0, "size=64k");
  }
  SUBCASE("it does not execute") {
    is_mounted = mounted(MS_NOEXEC, "size=4m");
  }
  SUBCASE("it is read-only") {
    is_mounted = mounted(MS_RDONLY, "size=4m");
  }
  SUBCASE("it is another's") {
    if (chown(cache.c_str(), 12345, 12345) != 0) return;
    REQUIRE(symlink("/var/empty", (cache + "/hvdlaunch").c_str()) == 0);
  }
  SshServer::Options options = with_cache(cache);
  const std::string none = "TMPDIR=/proc/none";
  options.forced_command.replace(options.forced_command.find(none), none.size(),
                                 "TMPDIR=" + folder.path());
  const SshServer server(options);
  for (int login = 0; login < 2; ++login) {
    Session session(server, "");
    session.check_ready();
    CHECK(session.pushes == 1 - login);
  }
  const std::string next = folder / ("hvdlaunch-" + std::to_string(getuid()));
  CHECK(mode_of(next) == 0700);
  CHECK(file_text(next + "/" + kBuild + "/hvdlaunch") == fake_agent().content);
  if (is_mounted) REQUIRE(umount2(cache.c_str(), MNT_DETACH) == 0);
}

TEST_CASE("a start-up file that reads its stdin takes nothing of ours") {
  const TemporaryFolder folder;
  SshServer::Options options = with_cache(folder.path());
  options.forced_command = "bash -c \"read -t 0.3 x\"; " + options.forced_command;
  const SshServer server(options);
  for (int login = 0; login < 2; ++login) Session(server, "").check_ready();
}

TEST_CASE("a file system that is full, or does not execute") {
  const TemporaryFolder folder;
  const auto mounted = [&](unsigned long flags, const char* size) {
    return getuid() == 0 && mount("tmpfs", folder.path().c_str(), "tmpfs", flags, size) == 0;
  };
  if (!mounted(0, "size=64k")) {
    not_run("ssh: full disk and noexec: mounting is not allowed");
    return;
  }
  const SshServer server(with_cache(folder.path()));
  CHECK(contains(Session(server, "").check_fails(), "No space left on device"));
  REQUIRE(umount2(folder.path().c_str(), MNT_DETACH) == 0);
  REQUIRE(mounted(MS_NOEXEC, "size=4m"));
  const std::string error = Session(server, "").check_fails();
  CHECK(contains(error, "Permission denied"));
  REQUIRE(umount2(folder.path().c_str(), MNT_DETACH) == 0);
}

TEST_CASE("a host of another architecture is told before the push") {
  const TemporaryFolder folder;
  write_file(folder / "uname", "#!/bin/sh\necho riscv64\n");
  REQUIRE(chmod((folder / "uname").c_str(), 0755) == 0);
  SshServer::Options options = with_cache(folder.path());
  options.forced_command = "PATH=" + folder.path() + ":$PATH " + options.forced_command;
  const SshServer server(options);
  CHECK(Session(server, "").check_fails() ==
        "this hvdlaunch is built for " + machine() + " and cannot run on h1, which is riscv64");
}

TEST_CASE("a host with an older C library is told before the push") {
  const TemporaryFolder folder;
  write_file(folder / "getconf", "#!/bin/sh\nexit 1\n");
  write_file(folder / "ldd", "#!/bin/sh\necho \"ldd (GNU libc) 2.17\"\n");
  for (const std::string name : {"getconf", "ldd"}) chmod((folder / name).c_str(), 0755);
  SshServer::Options options = with_cache(folder.path());
  options.forced_command = "PATH=" + folder.path() + ":$PATH " + options.forced_command;
  const SshServer server(options);
  CHECK(Session(server, "").check_fails() == "this hvdlaunch needs the C library glibc " +
                                                 needed_glibc() +
                                                 " or newer, and h1 has ldd (GNU libc) 2.17");
}

TEST_CASE("a cached binary that somebody else owns is not run") {
  if (getuid() != 0) {
    not_run("ssh: a binary of somebody else: giving files away is not allowed");
    return;
  }
  const TemporaryFolder folder;
  const SshServer server(with_cache(folder.path()));
  Session(server, "").check_ready();
  const std::string binary = folder / ("hvdlaunch/" + kBuild + "/hvdlaunch");
  REQUIRE(chown(binary.c_str(), 12345, 12345) == 0);
  Session again(server, "");
  again.check_ready();
  CHECK(again.pushes == 1);
  struct stat st;
  REQUIRE(stat(binary.c_str(), &st) == 0);
  CHECK(st.st_uid == 0);
}

TEST_CASE("the ssh program reaches the agent through any login shell") {
  for (const char* shell : {"sh", "bash", "tcsh", "fish"}) {
    if (!have_program(shell)) {
      not_run(std::string("ssh: login shell ") + shell + ": not installed");
      continue;
    }
    CAPTURE(shell);
    const TemporaryFolder cache;
    const SshServer server(with_cache(cache.path(), shell));
    const SshTarget target = server.target(bootstrap_command(kBuild, "--job j"));
    std::vector<std::string> as_rsh = openssh_argv(target);
    as_rsh.pop_back();
    for (const std::string& word : remote_words(target.command)) as_rsh.push_back(word);
    for (const auto& argv : {openssh_argv(target), as_rsh}) {
      auto channel = start_command_channel({"h1", argv, kOpensshLost});
      REQUIRE(channel.ok());
      Session session(std::move(*channel), fake_agent());
      session.check_ready();
      CHECK(session.first_line == "/proc/self/fd/9 agent --job j");
    }
  }
}
