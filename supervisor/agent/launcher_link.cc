#include "supervisor/agent/launcher_link.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "supervisor/agent/watched_fd.h"

namespace hvd {

namespace {

// The protocol that a LauncherHello begins with, whatever follows: a launcher of another build must
// be told so, and not that it sends garbage.
std::optional<uint32_t> protocol_of(std::string_view body) {
  uint8_t kind = 0xff;
  uint32_t protocol = 0;
  Decoder decoder(body);
  decoder(kind, protocol);
  if (!decoder.ok() || kind != ToAgent(LauncherHello{}).index()) return std::nullopt;
  return protocol;
}

}  // namespace

LauncherLink::LauncherLink(Poller& poller, int in, int out) : poller_(poller), in_(in), out_(out) {
  set_nonblocking(in_);
  set_nonblocking(out_);
}

void LauncherLink::attach(AttachCaller caller, const AgentHello& hello, Held held,
                          bool same_session) {
  detach();
  own_ = std::move(caller);
  in_ = own_.in.get();
  set_nonblocking(own_.out.get());
  out_ = own_.out.get();
  in_ended_ = out_broken_ = false;
  complaint_.clear();
  reader_ = std::move(own_.reader);
  if (same_session) {
    unheard_.heard(own_.hello.heard);
  } else {
    unheard_ = ResendQueue();
    heard_ = 0;
    for (const FromAgent& news : news_.retell()) unheard_.add(to_frame(news));
  }
  held.heard = heard_;
  send(hello);
  send(held);
  send_raw(unheard_.unheard());
}

// The numbers of those it began on stay taken, so that no other file gets them.
void LauncherLink::detach() {
  in_ended_ = true;
  break_out();
  if (in_ < 0) return;
  poller_.forget(in_);
  poller_.forget(out_);
  if (own_.in) {
    own_.dismiss();
    own_ = AttachCaller();
  } else if (const Fd null(open("/dev/null", O_RDWR | O_CLOEXEC)); null) {
    dup2(null.get(), in_);
    dup2(null.get(), out_);
  }
  in_ = out_ = -1;
}

void LauncherLink::send(const FromAgent& message) {
  std::string bytes = to_frame(message);
  send_raw(bytes);
  if (!keeps_) return;
  news_.sent(message);
  if (is_counted(message)) unheard_.add(std::move(bytes));
}

void LauncherLink::send_raw(std::string_view bytes) {
  if (!out_broken_) unsent_.append(bytes);
}

void LauncherLink::send_output(const OutputEnd& of, size_t bytes) {
  if (out_broken_) return;
  const std::string head = output_head(of, bytes);
  std::memcpy(unsent_.room(kOutputHead + bytes), head.data(), kOutputHead);
  unsent_.grow(kOutputHead + bytes);
}

bool LauncherLink::take_frame(std::string_view body, std::vector<ToAgent>& messages) {
  const std::optional<uint32_t> protocol = protocol_of(body);
  if (protocol && *protocol != kProtocol) {
    refuse("the launcher speaks protocol " + std::to_string(*protocol) + ", this agent speaks " +
           std::to_string(kProtocol));
    return false;
  }
  std::optional<ToAgent> message = parse_to_agent(body);
  if (!message) {
    refuse("the launcher sent a message that cannot be understood");
    return false;
  }
  if (is_counted(*message)) ++heard_;
  if (const auto* echo = std::get_if<Echo>(&*message)) unheard_.heard(echo->heard);
  messages.push_back(std::move(*message));
  return true;
}

std::vector<ToAgent> LauncherLink::receive() {
  std::vector<ToAgent> messages;
  if (in_ended_) return messages;
  char block[65536];
  const ssize_t n = read(in_, block, sizeof block);
  if (n > 0) reader_.feed({block, static_cast<size_t>(n)});
  // What came with the hello of an attach may lie there already.
  while (n != 0 && !in_ended_) {
    const std::optional<std::string_view> body = reader_.next();
    if (!body || !take_frame(*body, messages)) break;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return messages;
  if (n <= 0) in_ended_ = true;
  if (reader_.broken()) refuse("the launcher announced a message that is too long");
  return messages;
}

void LauncherLink::flush() {
  while (!out_broken_ && unsent() > 0) {
    const ssize_t n = write(out_, unsent_.view().data(), unsent());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return break_out();
    unsent_.drop(static_cast<size_t>(n));
  }
}

void LauncherLink::watch() {
  if (in_ < 0) return;
  poller_.watch(in_, poll_name(Source::wire_in), {!in_ended_, false});
  poller_.watch(out_, poll_name(Source::wire_out), {false, !out_broken_ && unsent() > 0});
}

void LauncherLink::refuse(std::string complaint) {
  in_ended_ = true;
  complaint_ = std::move(complaint);
}

void LauncherLink::break_out() {
  out_broken_ = true;
  unsent_.clear();
}

}  // namespace hvd
