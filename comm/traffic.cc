#include "comm/traffic.h"

#include <algorithm>

namespace hvd {

namespace {

// The first piece that has not moved whole, if any.
template <class Byte>
std::span<Byte>* next_piece(std::vector<std::span<Byte>>& pieces, size_t& next) {
  while (next < pieces.size() && pieces[next].empty()) ++next;
  return next < pieces.size() ? &pieces[next] : nullptr;
}

struct Stream {
  Traffic& traffic;
  size_t out = 0, in = 0;  // pieces before these have moved
  bool sends() { return next_piece(traffic.out, out) != nullptr; }
  bool receives() { return next_piece(traffic.in, in) != nullptr; }
};

// Sends or receives (`transfer` moves some bytes) until the pieces are through or no more go at
// once.
template <class Byte, class Transfer>
Outcome push(std::vector<std::span<Byte>>& pieces, size_t& next, Transfer transfer) {
  while (std::span<Byte>* piece = next_piece(pieces, next)) {
    size_t moved = 0;
    const Outcome outcome = transfer(*piece, moved);
    if (!outcome) return outcome;
    *piece = piece->subspan(moved);
    if (!piece->empty()) break;
  }
  return {};
}

Outcome send_more(Links& links, Stream& stream) {
  return push(stream.traffic.out, stream.out, [&](std::span<const char> piece, size_t& moved) {
    return links.send(stream.traffic.peer, piece, moved);
  });
}

Outcome receive_more(Links& links, Stream& stream) {
  return push(stream.traffic.in, stream.in, [&](std::span<char> piece, size_t& moved) {
    return links.receive(stream.traffic.peer, piece, moved);
  });
}

}  // namespace

Outcome move(Links& links, std::vector<Traffic>& traffic, Patience& patience) {
  std::vector<Stream> streams;
  for (Traffic& t : traffic) streams.push_back({t});
  std::vector<Want> wants;
  std::vector<uint32_t> missing;
  while (true) {
    wants.clear();
    missing.clear();
    for (Stream& stream : streams) {
      Outcome pushed = send_more(links, stream);
      if (pushed) pushed = receive_more(links, stream);
      if (!pushed) return pushed;
      const Want want{stream.traffic.peer, stream.sends(), stream.receives()};
      if (!want.send && !want.receive) continue;
      wants.push_back(want);
      missing.push_back(want.peer);
    }
    if (wants.empty()) return {};
    const Outcome waited = links.wait(wants, patience.deadline());
    if (!waited) return waited;
    const Outcome patient = patience.check([&] { return name_ranks(missing); });
    if (!patient) return patient;
  }
}

void receive_remains(Links& links, std::vector<Traffic>& traffic) {
  for (Traffic& t : traffic) {
    Stream stream{t};
    // That a link is broken is known already.
    static_cast<void>(receive_more(links, stream).ok());
  }
}

bool received_all(const Traffic& traffic) {
  return std::all_of(traffic.in.begin(), traffic.in.end(),
                     [](const std::span<char>& piece) { return piece.empty(); });
}

}  // namespace hvd
