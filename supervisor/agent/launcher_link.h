// The agent's end of wire 1: frames on standard input and output, or on what a launcher that
// attached brought along; nothing is ever waited for. Where the job survives its launcher, messages
// are kept until they were heard, and what a launcher that takes over must know of the attempt is
// kept beside them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/frame.h"
#include "base/message.h"
#include "base/poller.h"
#include "base/resend_queue.h"
#include "supervisor/agent/attach_door.h"
#include "supervisor/agent/open_news.h"

namespace hvd {

class LauncherLink {
 public:
  // While more than this is unsent, workers' output is left in their pipes.
  static constexpr size_t kPatientAbove = 1u << 20;
  // While more than this is unsent, workers' messages are left in their sockets too.
  static constexpr size_t kBusyAbove = 4u << 20;

  // Begins on these, which are made non-blocking and stay the caller's.
  LauncherLink(Poller& poller, int in, int out);

  // From now on the session outlives its connection.
  void keep_session() { keeps_ = true; }
  // Goes on over another connection. In the same session, what the launcher has not heard is sent
  // again; for another one, all that is still of use.
  void attach(AttachCaller caller, const AgentHello& hello, Held held, bool same_session);
  // Nobody is at the other end any more.
  void detach();
  uint64_t heard() const { return heard_; }

  // Bytes as they are, for the greeting.
  void send_raw(std::string_view bytes);
  // Dropped once nobody reads any more.
  void send(const FromAgent& message);
  // Where an Output's bytes can be written, at most `most`; send_output() sends the first of them.
  char* output_room(size_t most) { return unsent_.room(kOutputHead + most) + kOutputHead; }
  void send_output(const OutputEnd& of, size_t bytes);
  size_t unsent() const { return unsent_.size(); }

  // Takes what arrived: whole messages in order.
  std::vector<ToAgent> receive();
  // Writes what can be written now.
  void flush();
  // Tells the poller what to wait for.
  void watch();

  // An answer to workers' news is of use once, whoever gives it.
  bool is_new(const ToAgent& message) { return !keeps_ || news_.heard(message); }

  // The launcher is gone, or what it sent is none of our messages. It may still read what is
  // unsent if only its own side came to the end.
  bool ended() const { return in_ended_ || out_broken_; }
  // Why, if what it sent could not be understood; empty for a plain end.
  const std::string& complaint() const { return complaint_; }

 private:
  void refuse(std::string complaint);
  void break_out();
  bool take_frame(std::string_view body, std::vector<ToAgent>& messages);

  Poller& poller_;
  AttachCaller own_;  // what in_ and out_ are, if a launcher attached
  int in_, out_;
  bool keeps_ = false;
  ResendQueue unheard_;
  OpenNews news_;
  uint64_t heard_ = 0;  // counted messages
  FrameReader reader_;
  Buffer unsent_;
  bool in_ended_ = false;
  bool out_broken_ = false;
  std::string complaint_;
};

}  // namespace hvd
