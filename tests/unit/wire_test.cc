// Frames, messages, durations and terminal text: small pure parts of base and launcher.
#include <doctest/doctest.h>

#include <random>

#include "base/frame.h"
#include "base/message.h"
#include "base/template.h"
#include "base/time.h"
#include "launcher/terminal_text.h"

using namespace hvd;
using namespace std::chrono_literals;

TEST_CASE("a stream in pieces of any size gives the same frames") {
  const std::vector<std::string> bodies = {"", "a", std::string(70000, 'x'), "end"};
  std::string stream;
  for (const std::string& body : bodies) stream += frame(body);
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{4096}, stream.size()}) {
    FrameReader reader;
    std::vector<std::string> got;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::string_view(stream).substr(at, piece));
      while (const auto body = reader.next()) got.emplace_back(*body);
    }
    CHECK(got == bodies);
    CHECK_FALSE(reader.broken());
  }
}

TEST_CASE("a frame longer than the limit breaks the stream") {
  FrameReader reader;
  reader.feed(std::string("\xff\xff\xff\x7f", 4));
  CHECK_FALSE(reader.next());
  CHECK(reader.broken());
}

namespace {

StartAttempt sample_start() {
  StartAttempt m;
  m.attempt = 3;
  m.size = 4;
  m.places = {{2, 0, 1, 2}, {3, 1, 1, 2}};
  m.argv = {"train", "", "a b\n'\"\xff"};
  m.set = {{"A", "1"}, {"B", ""}};
  m.resume_step = 1ull << 60;
  return m;
}

std::string body_of(const std::string& frame) {
  return frame.substr(4);
}

}  // namespace

TEST_CASE("an output's head with its bytes behind it is the message") {
  for (const std::string& bytes :
       {std::string(), std::string("a\n\0b", 4), std::string(70000, 'x')}) {
    const OutputEnd of{3, 70000, Stream::err};
    const std::string head = output_head(of, bytes.size());
    CHECK(head.size() == kOutputHead);
    CHECK(head + bytes == to_frame(FromAgent(Output{of.attempt, of.rank, of.stream, bytes})));
  }
}

TEST_CASE("a buffer gives back what it was given, in order") {
  std::minstd_rand random(11);
  Buffer buffer;
  std::string expected;
  for (int i = 0; i < 20000; ++i) {
    const std::string piece(random() % (i % 100 == 0 ? 100000 : 100), static_cast<char>(random()));
    buffer.append(piece);
    expected += piece;
    const size_t gone = random() % (expected.size() + 1);
    buffer.drop(gone);
    expected.erase(0, gone);
    REQUIRE(buffer.view() == expected);
  }
}

TEST_CASE("messages come back as they were sent") {
  const auto back = parse_to_agent(body_of(to_frame(ToAgent(sample_start()))));
  REQUIRE(back);
  const auto& m = std::get<StartAttempt>(*back);
  CHECK(m.argv == sample_start().argv);
  CHECK(m.set == sample_start().set);
  CHECK(m.places[1].local_rank == 1);
  CHECK(m.resume_step == 1ull << 60);

  WorkerEnded ended;
  ended.signal = -1;
  ended.left_early = true;
  ended.steps = {{1, 2}};
  const auto other = parse_from_agent(body_of(to_frame(FromAgent(ended))));
  REQUIRE(other);
  CHECK(std::get<WorkerEnded>(*other).signal == -1);
  CHECK(std::get<WorkerEnded>(*other).left_early);
  CHECK(std::get<WorkerEnded>(*other).steps[0].step == 2);
}

TEST_CASE("truncated, extended and random bodies are no messages and no harm") {
  const std::string body = body_of(to_frame(ToAgent(sample_start())));
  for (size_t length = 0; length < body.size(); ++length) {
    CHECK_FALSE(parse_to_agent(body.substr(0, length)));
  }
  CHECK_FALSE(parse_to_agent(body + "x"));
  std::minstd_rand random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = body;
    for (int k = 0; k < 4; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    (void)parse_to_agent(bytes);
    (void)parse_from_agent(bytes);
    (void)parse_from_worker(bytes);
    (void)parse_to_worker(bytes);
  }
}

TEST_CASE("an enum or bool out of range is no message") {
  std::string body = body_of(to_frame(ToAgent(Credit{1, 2, Stream::err, 9})));
  body[1 + 4 + 4] = 2;
  CHECK_FALSE(parse_to_agent(body));
}

TEST_CASE("durations") {
  CHECK(*parse_duration("10") == 10s);
  CHECK(*parse_duration("0.3") == 300ms);
  CHECK(*parse_duration("250ms") == 250ms);
  CHECK(*parse_duration("2h30m") == 150min);
  CHECK(*parse_duration("1.5m") == 90s);
  CHECK(*parse_duration("0") == 0s);
  for (const char* bad : {"", "s", "-1", "1x", "1m30", "1..2", "1e3", " 1", "1 s", "99999999999"}) {
    CAPTURE(bad);
    const auto result = parse_duration(bad);
    REQUIRE_FALSE(result);
    CHECK(result.error().text.find("is not a duration") != std::string::npos);
  }
}

TEST_CASE("remote text cannot steer the terminal") {
  CHECK(terminal_lines("p: ", "a\x1b[31m\nb\r") == "p: a\\x1b[31m\np: b\\x0d\n");
  // The commands of 8-bit terminals, what is cut off, and other spellings of ASCII.
  CHECK(terminal_lines("", "\xc2\x9b\x9b\xe2\x82") == "\\xc2\\x9b\\x9b\\xe2\\x82\n");
  CHECK(terminal_lines("", "\xe0\x80\x9b") == "\\xe0\\x80\\x9b\n");
  CHECK(terminal_lines("", "\xc2\xa0\xc5\x9b \xe2\x82\xac \xf0\x9f\x9a\x80") ==
        "\xc2\xa0\xc5\x9b \xe2\x82\xac \xf0\x9f\x9a\x80\n");
}
