#include "comm/traffic.h"

namespace hvd {

namespace {

// Pieces in order, and how far they have gone.
template <class Byte>
class Progress {
 public:
  explicit Progress(std::vector<std::span<Byte>> pieces) : pieces_(std::move(pieces)) { skip(); }

  bool done() const { return next_ == pieces_.size(); }
  std::span<Byte> rest() const { return pieces_[next_]; }
  void advance(size_t moved) {
    pieces_[next_] = pieces_[next_].subspan(moved);
    skip();
  }

 private:
  void skip() {
    while (next_ < pieces_.size() && pieces_[next_].empty()) ++next_;
  }
  std::vector<std::span<Byte>> pieces_;
  size_t next_ = 0;
};

struct Stream {
  uint32_t peer;
  Progress<const char> out;
  Progress<char> in;
  bool done() const { return out.done() && in.done(); }
};

// Moves what goes at once.
Outcome push(Links& links, Stream& stream) {
  while (!stream.out.done()) {
    const size_t wanted = stream.out.rest().size();
    size_t moved = 0;
    const Outcome sent = links.send(stream.peer, stream.out.rest(), moved);
    if (!sent) return sent;
    stream.out.advance(moved);
    if (moved < wanted) break;
  }
  while (!stream.in.done()) {
    const size_t wanted = stream.in.rest().size();
    size_t moved = 0;
    const Outcome received = links.receive(stream.peer, stream.in.rest(), moved);
    if (!received) return received;
    stream.in.advance(moved);
    if (moved < wanted) break;
  }
  return {};
}

}  // namespace

Outcome move(Links& links, std::vector<Traffic> traffic, Patience& patience) {
  std::vector<Stream> streams;
  for (Traffic& t : traffic) {
    streams.push_back({t.peer, Progress(std::move(t.out)), Progress(std::move(t.in))});
  }
  std::vector<Want> wants;
  std::vector<uint32_t> missing;
  while (true) {
    wants.clear();
    missing.clear();
    for (Stream& stream : streams) {
      const Outcome pushed = push(links, stream);
      if (!pushed) return pushed;
      if (stream.done()) continue;
      wants.push_back({stream.peer, !stream.out.done(), !stream.in.done()});
      missing.push_back(stream.peer);
    }
    if (wants.empty()) return {};
    const Outcome waited = links.wait(wants, patience.deadline());
    if (!waited) return waited;
    const Outcome patient = patience.check([&] { return name_ranks(missing); });
    if (!patient) return patient;
  }
}

}  // namespace hvd
