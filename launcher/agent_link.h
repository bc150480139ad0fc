// The launcher's end of wire 1 for one host: brings the agent up over a channel, cuts the stream
// into messages, answers beats, and notices when the host falls silent.
//
// Silence: an agent beats every tenth of the limit; one not heard for the whole limit is silent.
// The owner calls judge() only after it has read everything that had arrived, so that a launcher
// that slept blames nobody.
//
// Of a job that survives its launcher, a link outlives its connection: the owner gives it another
// one, the agent is attached to, and the session goes on (base/message.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/frame.h"
#include "base/message.h"
#include "base/resend_queue.h"
#include "base/time.h"
#include "launcher/bootstrap.h"
#include "launcher/channel.h"
#include "supervisor/policy.h"

namespace hvd {

// Gives the binary to push, read at most once a job. None for an agent that is this very program:
// it is spoken to at once, without waiting for its greeting.
using BinarySource = std::function<Result<const AgentBinary*>()>;

class AgentLink {
 public:
  // What the owner is told, in order: AgentHello when it is up, other messages, then HostDown last.
  struct Down {
    HostEnd end;
    std::string reason;
  };
  using News = std::variant<FromAgent, Down>;

  AgentLink(std::string label, const std::string& build, std::unique_ptr<Channel> channel,
            LauncherHello hello, Time start_deadline, BinarySource binary);

  // Moves bytes both ways and appends what became of it.
  void advance(Time now, std::vector<News>& news);
  // Ends the link if a limit has passed.
  void judge(Time now, std::vector<News>& news);
  std::optional<Time> deadline() const;
  // The owner stood still and could hear nobody: silence counts from now.
  void forgive_silence(Time now) { last_heard_ = now; }

  // Until it is up: what holds it up, a sentence that names the host.
  std::string waiting_for(Time now) const;

  // What is sent while there is no connection goes out with the next one.
  void send(const ToAgent& message);
  // The session goes on over another connection, after a Down of this one that may_go_on() says is
  // not the end. Then Held is the first news.
  bool may_go_on(const Down& down) const;
  void go_on(std::unique_ptr<Channel> channel, Time start_deadline);
  // When the agent, not heard for so long, has stopped its ranks.
  Time given_up_at() const;
  Channel& channel() { return *channel_; }
  // It leads to the agent of an earlier launcher.
  bool takes_over() const { return hello_.take_over; }
  // It was, at least, and the session is not over.
  bool was_up() const { return met_; }
  bool up() const { return state_ == State::talking; }
  bool down() const { return state_ == State::down; }

 private:
  enum class State { starting, greeted, met, talking, down };

  void read(Time now, std::vector<News>& news);
  void greet(std::string_view bytes, std::vector<News>& news);
  void take_frames(std::vector<News>& news);
  void take(FromAgent message, std::vector<News>& news);
  void take_hello(const AgentHello& hello, std::vector<News>& news);
  void take_held(Held held, std::vector<News>& news);
  void end(HostEnd how, const std::string& reason, std::vector<News>& news);
  std::string diagnosis() const;
  Time limit() const;

  std::string label_, build_;
  std::unique_ptr<Channel> channel_;
  LauncherHello hello_;
  Duration silence_;
  Time start_deadline_;
  Time last_heard_{};
  Bootstrap bootstrap_;
  BinarySource binary_;
  FrameReader reader_;
  std::string diagnostics_;
  uint64_t input_under_way_ = 0;  // bytes that the agent was sent and has not given credit for
  State state_ = State::starting;
  // Of the session.
  bool met_ = false;      // it was up
  bool parting_ = false;  // Goodbye was sent
  bool absent_ = false;   // the agent is gone, with all of the job on its host
  Time last_met_{};       // heard while it was
  ResendQueue unheard_;
  uint64_t heard_ = 0;  // counted messages
};

}  // namespace hvd
