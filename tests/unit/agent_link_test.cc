// The launcher's end of wire 1 over a channel in memory, on a time that the test tells.
#include "launcher/agent_link.h"

#include <doctest/doctest.h>

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// What the far side said and was told; shared with the channel that the link owns.
struct Far {
  std::string to_launcher, from_launcher, diagnostics;
  ChannelState state = ChannelState::open;
  ChannelEnd end = ChannelEnd::ended;
  std::string reason = "h1: gone";
};

class MemoryChannel : public Channel {
 public:
  explicit MemoryChannel(Far& far) : far_(far) {}
  ChannelState state() const override { return far_.state; }
  ChannelEnd end() const override { return far_.end; }
  const std::string& reason() const override { return far_.reason; }
  int fd() const override { return -1; }
  Interest interest() const override { return {}; }
  std::optional<Time> deadline() const override { return std::nullopt; }
  void advance(Time) override {}
  void send(std::string_view bytes) override { far_.from_launcher.append(bytes); }
  size_t unsent() const override { return 0; }
  std::string take_received() override { return std::exchange(far_.to_launcher, {}); }
  std::string take_diagnostics() override { return std::exchange(far_.diagnostics, {}); }
  std::string peer_address() const override { return "10.0.0.1"; }
  std::string own_address() const override { return "10.0.0.2"; }

 private:
  Far& far_;
};

struct Scene {
  Far far;
  Time at{1000s};
  std::vector<AgentLink::News> news;
  AgentBinary binary{"b17d", "the program", std::string(64, '0')};
  AgentLink link{"h1",
                 "b17d",
                 std::make_unique<MemoryChannel>(far),
                 [] {
                   LauncherHello hello;
                   hello.silence_ns = 10'000'000'000;
                   return hello;
                 }(),
                 at + 60s,
                 [this] { return Result<const AgentBinary*>(&binary); }};

  void hear(const std::string& bytes) {
    far.to_launcher += bytes;
    link.advance(at, news);
  }
  void come_up() {
    hear("Welcome to h1!\n" + std::string(kAgentGreeting) + "b17d\n");
    hear(to_frame(FromAgent(AgentHello())));
    REQUIRE(link.up());
    news.clear();
  }
  const AgentLink::Down* down() const {
    return news.empty() ? nullptr : std::get_if<AgentLink::Down>(&news.back());
  }
};

// The last message that the launcher sent.
std::optional<ToAgent> last_sent(const Far& far) {
  FrameReader reader;
  reader.feed(far.from_launcher);
  std::optional<ToAgent> last;
  while (const auto body = reader.next()) last = parse_to_agent(*body);
  return last;
}

}  // namespace

TEST_CASE("text of the login is skipped, the hello is sent, the agent is up") {
  Scene s;
  s.come_up();
  REQUIRE(last_sent(s.far));
  CHECK(std::holds_alternative<LauncherHello>(*last_sent(s.far)));
}

TEST_CASE("an agent that is this very program is spoken to before it greets") {
  Far far;
  std::vector<AgentLink::News> news;
  AgentLink link("here", "b17d", std::make_unique<MemoryChannel>(far), LauncherHello(), Time{60s},
                 nullptr);
  REQUIRE(last_sent(far));
  CHECK(std::holds_alternative<LauncherHello>(*last_sent(far)));
  const size_t sent = far.from_launcher.size();
  far.to_launcher = std::string(kAgentGreeting) + "b17d\n" + to_frame(FromAgent(AgentHello()));
  link.advance(Time{1s}, news);
  CHECK(link.up());
  CHECK(far.from_launcher.size() == sent);
}

TEST_CASE("a beat is answered at once with its own time") {
  Scene s;
  s.come_up();
  s.hear(to_frame(FromAgent(Beat{77, 1, {}})));
  REQUIRE(last_sent(s.far));
  CHECK(std::get<Echo>(*last_sent(s.far)).agent_time == 77);
  CHECK(s.news.size() == 1);
}

TEST_CASE("a host is silent only after the whole limit, and any byte counts") {
  Scene s;
  s.come_up();
  s.at += 9s;
  s.hear(to_frame(FromAgent(Beat{1, 1, {}})));
  s.at += 9900ms;
  s.link.judge(s.at, s.news);
  CHECK(s.link.up());
  CHECK(*s.link.deadline() == s.at + 100ms);
  s.at += 100ms;
  s.link.judge(s.at, s.news);
  REQUIRE(s.down() != nullptr);
  CHECK(s.down()->end == HostEnd::silent);
  CHECK(s.down()->reason == "h1 has not been heard for 10 s");
}

TEST_CASE("an agent that does not start by the deadline is refused, with what it said") {
  Scene s;
  s.far.diagnostics = "motd\nbash: hvdlaunch: Permission denied\n";
  s.hear("noise\n");
  s.at += 60s;
  s.link.judge(s.at, s.news);
  REQUIRE(s.down() != nullptr);
  CHECK(s.down()->end == HostEnd::refused);
  CHECK(s.down()->reason ==
        "h1: its agent did not start within the start deadline: "
        "bash: hvdlaunch: Permission denied");
}

TEST_CASE("a channel's end means what it was, and before the hello the host was refused") {
  Scene s;
  SUBCASE("before the hello") {
    s.far.state = ChannelState::closed;
    s.link.advance(s.at, s.news);
    REQUIRE(s.down() != nullptr);
    CHECK(s.down()->end == HostEnd::refused);
  }
  SUBCASE("the agent ended") {
    s.come_up();
    s.far.state = ChannelState::closed;
    s.hear(to_frame(FromAgent(Beat{1, 1, {}})));
    CHECK(s.news.size() == 2);
    CHECK(s.down()->end == HostEnd::ended);
  }
  SUBCASE("the connection broke") {
    s.come_up();
    s.far.state = ChannelState::closed;
    s.far.end = ChannelEnd::lost;
    s.link.advance(s.at, s.news);
    CHECK(s.down()->end == HostEnd::lost);
  }
}

TEST_CASE("an agent that talks nonsense is cut off") {
  Scene s;
  s.come_up();
  SUBCASE("a message that is none") {
    s.hear(frame("\xff"));
  }
  SUBCASE("a frame without an end") {
    s.hear("\xff\xff\xff\xff");
  }
  SUBCASE("a second hello") {
    s.hear(to_frame(FromAgent(AgentHello())));
  }
  REQUIRE(s.down() != nullptr);
  CHECK(s.down()->end == HostEnd::lost);
  CHECK(s.link.down());
}

TEST_CASE("d6: a host that asks for more input than it took is cut off") {
  const auto give_back = [](Scene& s, uint64_t bytes) {
    s.hear(to_frame(FromAgent(InputCredit{1, 0, bytes})));
  };
  Scene s;
  s.come_up();
  SUBCASE("all that it was sent, in parts") {
    s.link.send(Input{1, 0, false, std::string(1000, 'x')});
    give_back(s, 400);
    s.link.send(Input{1, 0, true, std::string(10, 'x')});
    give_back(s, 610);
    CHECK(s.link.up());
    CHECK(s.news.size() == 2);
    give_back(s, 1);
  }
  SUBCASE("one byte more") {
    s.link.send(Input{1, 0, false, std::string(1000, 'x')});
    give_back(s, 1001);
  }
  SUBCASE("so much that a sum would begin anew") {
    s.link.send(Input{1, 0, false, std::string(1000, 'x')});
    give_back(s, 1000);
    s.link.send(Input{1, 0, false, std::string(1000, 'x')});
    give_back(s, UINT64_MAX);
  }
  SUBCASE("nothing was sent") {
    give_back(s, 1);
  }
  REQUIRE(s.down() != nullptr);
  CHECK(s.down()->end == HostEnd::lost);
  CHECK(s.down()->reason == "h1 asks for more input than it took");
}

TEST_CASE("another protocol is refused with both numbers") {
  Scene s;
  s.hear(std::string(kAgentGreeting) + "b17d\n");
  AgentHello hello;
  hello.protocol = kProtocol + 1;
  s.hear(to_frame(FromAgent(hello)));
  REQUIRE(s.down() != nullptr);
  CHECK(s.down()->end == HostEnd::refused);
  CHECK(s.down()->reason.find("speaks protocol") != std::string::npos);
}
