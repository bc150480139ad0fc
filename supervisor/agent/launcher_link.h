// The agent's end of wire 1: frames on standard input and output, nothing ever waited for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/frame.h"
#include "base/message.h"
#include "base/poller.h"

namespace hvd {

class LauncherLink {
 public:
  // While more than this is unsent, workers' output is left in their pipes.
  static constexpr size_t kPatientAbove = 1u << 20;
  // While more than this is unsent, workers' messages are left in their sockets too.
  static constexpr size_t kBusyAbove = 4u << 20;

  // Makes both descriptors non-blocking; they stay the caller's.
  LauncherLink(Poller& poller, int in, int out);

  // Bytes as they are, for the greeting.
  void send_raw(std::string_view bytes);
  // Dropped once nobody reads any more.
  void send(const FromAgent& message) { send_raw(to_frame(message)); }
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
  int in_, out_;
  FrameReader reader_;
  Buffer unsent_;
  bool in_ended_ = false;
  bool out_broken_ = false;
  std::string complaint_;
};

}  // namespace hvd
