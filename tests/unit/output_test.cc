// What the ranks write becomes lines on a page: cutting, prefixes, folding, and where logs go.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <vector>

#include "base/fd.h"
#include "base/template.h"
#include "launcher/detach.h"
#include "launcher/line_cutter.h"
#include "launcher/line_folder.h"
#include "launcher/log_folder.h"
#include "launcher/page.h"
#include "launcher/rank_output.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// The pieces of a stream that comes in chunks of so many bytes.
std::vector<std::string> pieces_of(std::string_view bytes, size_t chunk) {
  LineCutter cutter;
  std::vector<std::string> pieces;
  const auto put = [&](std::string_view piece) { pieces.emplace_back(piece); };
  for (; !bytes.empty(); bytes.remove_prefix(std::min(chunk, bytes.size()))) {
    cutter.feed(bytes.substr(0, chunk), put);
  }
  cutter.flush(put);
  return pieces;
}

// Streams on one page, each with its cutter.
class Reader {
 public:
  explicit Reader(bool terminal, std::vector<std::string> prefixes) : page_(terminal) {
    for (std::string& prefix : prefixes) styles_.push_back({std::move(prefix), false});
    cutters_.resize(styles_.size());
  }
  void say(size_t stream, std::string_view bytes) {
    cutters_[stream].feed(bytes, [&](std::string_view p) { page_.put(text, styles_[stream], p); });
  }
  void wait(size_t stream) {
    cutters_[stream].flush([&](std::string_view p) { page_.put(text, styles_[stream], p); });
  }
  void end(size_t stream) {
    wait(stream);
    page_.finish(text, styles_[stream]);
  }
  void own_line(const std::string& line) {
    page_.close_line(text);
    text += line;
  }

  std::string text;

 private:
  Page page_;
  std::vector<LineStyle> styles_;
  std::vector<LineCutter> cutters_;
};

// What this process writes to standard error while it lives.
class Errors {
 public:
  Errors() : before_(dup(STDERR_FILENO)), file_(std::tmpfile()) {
    std::fflush(stderr);
    dup2(fileno(file_), STDERR_FILENO);
  }
  ~Errors() {
    dup2(before_.get(), STDERR_FILENO);
    std::fclose(file_);
  }
  std::string text() const {
    std::string bytes(1 << 20, 0);
    std::fflush(stderr);
    bytes.resize(static_cast<size_t>(pread(fileno(file_), bytes.data(), bytes.size(), 0)));
    return bytes;
  }

 private:
  Fd before_;
  std::FILE* file_;
};

}  // namespace

TEST_CASE("a stream in chunks of any size gives the same lines, and all its bytes") {
  const std::string stream("one\n\ntwo\r\nbar 1\rbar 2\r\rbar 3\n\xff\x00\xc3\nend", 36);
  const auto whole = pieces_of(stream, stream.size());
  CHECK(whole.size() == 9);
  for (size_t chunk = 1; chunk < stream.size(); ++chunk) CHECK(pieces_of(stream, chunk) == whole);
  std::minstd_rand random(3);
  for (int i = 0; i < 300; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = "ab\r\n"[random() % 4];
    const auto pieces = pieces_of(bytes, 1 + random() % 9);
    CHECK(pieces == pieces_of(bytes, 1 + random() % 50));
    std::string joined;
    for (const std::string& piece : pieces) joined += piece;
    CHECK(joined == bytes);
  }
}

TEST_CASE("a line without an end takes bounded memory") {
  LineCutter cutter;
  size_t put = 0;
  for (int i = 0; i < 100; ++i) {
    cutter.feed(std::string(10000, 'x'), [&](std::string_view piece) { put += piece.size(); });
  }
  CHECK(put > 1000000 - kLongestLine);
}

TEST_CASE("e1: no text of another stream stands inside a line") {
  Reader page(false, {"0: ", "1: "});
  page.say(0, "one\ntw");
  page.say(1, "other\n");
  page.say(0, "o\n\nhal");
  CHECK(page.text == "0: one\n1: other\n0: two\n0: \n");
  page.text.clear();
  page.wait(0);
  page.say(0, "f and");
  page.wait(0);
  CHECK(page.text == "0: half and");
  page.say(1, "other\n");
  page.say(0, " half\n");
  CHECK(page.text == "0: half and\n1: other\n0:  half\n");
  page.text.clear();
  page.say(0, "open");
  page.wait(0);
  page.own_line("ours\n");
  page.say(0, "last");
  page.end(0);
  page.say(1, "end\n");
  CHECK(page.text == "0: open\nours\n0: last\n1: end\n");
}

TEST_CASE("e2: a bar is a line for each of its states, and one place on a terminal") {
  Reader pipe(false, {"0: ", "1: "});
  pipe.say(0, "\r 10%\r 20%");
  pipe.wait(0);
  pipe.say(0, "\r 30%\r");
  pipe.wait(0);
  pipe.say(0, "\ndone\r\n");
  CHECK(pipe.text == "0:  10%\n0:  20%\n0:  30%\n0: done\r\n");

  Reader terminal(true, {"0: ", "1: "});
  terminal.say(0, " 10%\r 20%\r");
  terminal.wait(0);
  terminal.say(1, "other\n");
  terminal.say(0, " 30%\rend\n");
  CHECK(terminal.text == "0:  10%\r0:  20%\r\n1: other\n0:  30%\r0: end\n");
}

TEST_CASE("e4: without a prefix bytes pass as they are") {
  const std::string bytes("a\rb\r\n\xff\x00\n\rhalf", 14);
  for (const bool terminal : {false, true}) {
    Reader page(terminal, {"", ""});
    page.say(0, bytes);
    page.end(0);
    CHECK(page.text == bytes);
    page.say(1, "other\n");
    CHECK(page.text == bytes + "\nother\n");
  }
}

TEST_CASE("identical lines are one, and each rank's lines stay in order") {
  LineFolder folder(3);
  const Time t = now();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    folder.put(rank, std::to_string(rank), "begin", t);
    folder.put(rank, std::to_string(rank), "rank " + std::to_string(rank), t);
    folder.put(rank, std::to_string(rank), "end", t + 100ms);
  }
  const auto all_said = folder.take(t, false);
  REQUIRE(all_said);
  CHECK(all_said->text == "begin");
  CHECK(all_said->count == 3);
  CHECK_FALSE(folder.take(t + 299ms, false));
  CHECK(*folder.deadline() == t + LineFolder::kWindow);
  std::vector<std::string> rest;
  while (const auto one = folder.take(t + 300ms, false)) {
    rest.push_back(one->text);
    CHECK(one->count == (one->text == "end" ? 3 : 1));
  }
  CHECK(rest.size() == 4);
  CHECK(rest.back() == "end");
}

TEST_CASE("a rank's line is not joined to one that it said more after") {
  LineFolder folder(2);
  const Time t = now();
  for (const char* line : {"a", "b", "a"}) folder.put(0, "", line, t);
  for (const char* line : {"b", "a", "a"}) folder.put(1, "", line, t);
  std::string order;
  while (const auto one = folder.take(t, true)) order += one->text + std::to_string(one->count);
  CHECK(order == "a1b2a2a1");
}

TEST_CASE("what waits to be folded is bounded, and nobody waits for ever") {
  LineFolder folder(2);
  const Time t = now();
  folder.put(0, "", "old", t);
  size_t taken = 0;
  for (int i = 0; i < 2000; ++i) {
    folder.put(1, "", std::to_string(i) + std::string(1000, 'x'), t + std::chrono::milliseconds(i));
    while (folder.take(t, false)) ++taken;
  }
  CHECK(taken > 900);
  LineFolder empty(2);
  for (int i = 0; i < 50'000; ++i) empty.put(0, "prefix", "", t);
  for (taken = 0; empty.take(t, false);) ++taken;
  CHECK(taken > 40'000);
  LineFolder slow(2);
  slow.put(0, "", "old", t);
  for (int i = 0; i < 10; ++i) slow.put(1, "", "new " + std::to_string(i), t + 200ms);
  while (slow.take(t + 300ms, false)) {
  }
  CHECK_FALSE(slow.deadline());
}

TEST_CASE("templates") {
  const std::map<std::string, std::string> values = {{"rank", "3"}, {"host", "h1"}};
  CHECK(fill_template("{rank}@{host}: ", values) == "3@h1: ");
  CHECK(fill_template("{x} {rank} {", values) == "{x} 3 {");
  CHECK(fill_template("", values).empty());
}

TEST_CASE("e6: a log folder goes on counting where it stands") {
  char name[] = "/tmp/hvd-logs-XXXXXX";
  REQUIRE(mkdtemp(name) != nullptr);
  const std::string dir = std::string(name) + "/a/b";
  CHECK(*claim_log_folder(dir) == 0);
  CHECK(*claim_log_folder(dir) == 1);
  for (const char* other : {"/attempt-7", "/attempt-8x", "/attempt-", "/attempt--9"}) {
    REQUIRE(mkdir((dir + other).c_str(), 0700) == 0);
  }
  CHECK(*claim_log_folder(dir) == 7);
  CHECK(access((dir + "/attempt-8").c_str(), F_OK) == 0);
  CHECK(*claim_log_number(dir, 7) == 9);
  CHECK(*claim_log_number(dir, 10) == 10);
  CHECK(log_file("d", 8, 3, "h1", Stream::err) == "d/attempt-8/rank-3@h1.err");
  const auto refused = claim_log_folder("/dev/null/logs");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text.find("/dev/null") != std::string::npos);
  REQUIRE(std::system(("rm -r " + std::string(name)).c_str()) == 0);
}

TEST_CASE("of the words of a detached job that did not start the last are told, and no others'") {
  char dir[] = "/tmp/hvd-detach-XXXXXX";
  REQUIRE(mkdtemp(dir) != nullptr);
  const std::string output = std::string(dir) + "/output";
  const auto says = [&](size_t lines) {
    const Errors errors;
    const auto launch = [lines](const std::function<void()>&) -> int {
      for (size_t i = 0; i < lines; ++i) dprintf(STDERR_FILENO, "%zu of %zu\n", i, lines);
      _exit(3);
    };
    CHECK(run_detached(
              output, [](int) { return ""; }, launch) == 3);
    return errors.text();
  };
  CHECK(says(2) == "0 of 2\n1 of 2\n");
  CHECK(says(1) == "0 of 1\n");
  const std::string many = says(10'000);
  CHECK(many.size() > 60'000);
  CHECK(many.size() <= 64 << 10);
  CHECK(many.ends_with("\n9999 of 10000\n"));
  const size_t first = std::strtoul(many.c_str(), nullptr, 10);
  CHECK(many.starts_with(std::to_string(first) + " of 10000\n"));
  REQUIRE(std::system(("rm -r " + std::string(dir)).c_str()) == 0);
}

TEST_CASE("what a host sends beyond its credit is dropped, and said once") {
  char dir[] = "/tmp/hvd-credit-XXXXXX";
  REQUIRE(mkdtemp(dir) != nullptr);
  Job job;
  job.size = 1;
  job.hosts.resize(1);
  job.hosts[0].name = "h1";
  LaunchSettings settings;
  settings.only_ranks = {7};
  settings.log_dir = dir;
  StartAttempt start;
  start.attempt = 1;
  start.places.resize(1);
  start.credit = 1000;
  uint64_t back = 0;
  std::string told;
  {
    const Errors errors;
    {
      Writer screen, files;
      RankOutput output(job, settings, screen, screen, files);
      output.open(0, start);
      const auto written = [&] {
        while (!screen.idle() || !files.idle()) usleep(1000);
        for (const auto& [host, credit] : output.take_credit()) back += credit.bytes;
      };
      // To the last byte, more than once: the same again once there is credit.
      for (int round = 0; round < 2; ++round) {
        output.take(0, {1, 0, Stream::out, std::string(500, 'a')}, now());
        output.take(0, {1, 0, Stream::out, std::string(500, 'a')}, now());
        written();
        CHECK(back == 1000u * (round + 1));
      }
      output.take(0, {1, 0, Stream::out, std::string(1001, 'b')}, now());
      output.take(0, {1, 0, Stream::out, std::string(5000, 'b')}, now());
      written();
      CHECK(back == 3000);
    }
    told = errors.text();
  }
  CHECK(std::filesystem::file_size(std::string(dir) + "/attempt-1/rank-0@h1.out") == 3000);
  CHECK(told ==
        "hvdlaunch: output of ranks on h1 is not whole: the host sends more than it may, which is "
        "dropped\n");
  REQUIRE(std::system(("rm -r " + std::string(dir)).c_str()) == 0);
}
