// What a far host says to the launcher: banners, the answers of the start, then frames. The first
// byte is the length of the pieces it arrives in, the second whether there is a binary to push.
#include "launcher/agent_link.h"
#include "launcher/terminal_text.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;
using namespace std::chrono_literals;

namespace {

constexpr const char* kBuild = "b17d";

class MemoryChannel : public Channel {
 public:
  ChannelState state() const override { return state_; }
  ChannelEnd end() const override { return ChannelEnd::ended; }
  const std::string& reason() const override { return reason_; }
  int fd() const override { return -1; }
  Interest interest() const override { return {}; }
  std::optional<Time> deadline() const override { return std::nullopt; }
  void advance(Time) override {}
  void send(std::string_view) override {}
  size_t unsent() const override { return 0; }
  std::string take_received() override { return std::exchange(received, {}); }
  std::string take_diagnostics() override { return std::exchange(diagnostics, {}); }
  std::string peer_address() const override { return {}; }
  std::string own_address() const override { return {}; }
  void close() { state_ = ChannelState::closed; }

  std::string received, diagnostics;

 private:
  ChannelState state_ = ChannelState::open;
  std::string reason_ = "h1: gone";
};

void check_news(const AgentLink& link, const std::vector<AgentLink::News>& news, size_t size) {
  constexpr size_t kLeast = 5;  // bytes of a frame
  HVD_CHECK(news.size() <= size / kLeast + 2);
  for (size_t i = 0; i < news.size(); ++i) {
    if (const auto* down = std::get_if<AgentLink::Down>(&news[i])) {
      HVD_CHECK(i + 1 == news.size() && link.down());
      HVD_CHECK(down->reason.find("h1") != std::string::npos && down->reason.size() < 8192);
      std::string shown = terminal_lines("", down->reason);
      std::erase(shown, '\n');
      HVD_CHECK(!has_controls(shown));
    } else {
      // The hello comes first and never again.
      const bool hello = std::holds_alternative<AgentHello>(std::get<FromAgent>(news[i]));
      HVD_CHECK(hello == (i == 0));
    }
  }
}

void check_bootstrap(std::string_view text, size_t piece) {
  Bootstrap bootstrap("h1", kBuild);
  size_t fed = 0;
  in_pieces(text, piece, [&](std::string_view bytes) {
    if (bootstrap.state() == Bootstrap::State::waiting) {
      bootstrap.feed(bytes);
      fed += bytes.size();
    }
    if (bootstrap.state() == Bootstrap::State::need_binary) {
      bootstrap.push({kBuild, "x", std::string(64, '0')});
    }
  });
  if (bootstrap.state() == Bootstrap::State::failed) {
    check_sentence(terminal_lines("", bootstrap.error()).substr(0, bootstrap.error().size()), "");
    HVD_CHECK(!has_controls(bootstrap.error()) && bootstrap.error().size() < 1000);
  }
  HVD_CHECK(!has_controls(bootstrap.last_skipped()) && bootstrap.last_skipped().size() <= 500);
  if (bootstrap.state() == Bootstrap::State::ready) HVD_CHECK(bootstrap.take_rest().size() < fed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = text_of(data, size);
  const size_t piece = 1u + take_byte(text);
  const bool pushes = take_byte(text) % 2 == 0;
  check_bootstrap(text, piece);

  const AgentBinary binary{kBuild, "the program", std::string(64, '0')};
  BinarySource source;
  if (pushes) source = [&] { return Result<const AgentBinary*>(&binary); };
  auto owned = std::make_unique<MemoryChannel>();
  MemoryChannel& channel = *owned;
  const Time at{1000s};
  AgentLink link("h1", kBuild, std::move(owned), LauncherHello{}, at + 60s, source);
  std::vector<AgentLink::News> news;
  in_pieces(text, piece, [&](std::string_view bytes) {
    channel.received += bytes;
    channel.diagnostics += bytes;
    link.advance(at, news);
  });
  channel.close();
  link.advance(at, news);
  link.judge(at + 3600s, news);
  HVD_CHECK(link.down());
  check_news(link, news, size);
  return 0;
}
