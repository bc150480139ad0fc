#include "launcher/rank_output.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/template.h"
#include "launcher/log_folder.h"
#include "launcher/terminal_text.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

// How long a line may be without an end before it is shown as far as it is.
constexpr Duration kPatience = 300ms;

std::string_view without_end(std::string_view piece) {
  while (!piece.empty() && (piece.back() == '\n' || piece.back() == '\r')) piece.remove_suffix(1);
  return piece;
}

}  // namespace

RankOutput::RankOutput(const Job& job, const LaunchSettings& settings, Writer& out, Writer& err,
                       Writer& files)
    : job_(job),
      settings_(settings),
      out_(out),
      err_(err),
      files_(files),
      log_number_(settings.logged_before),
      one_page_(&out == &err),
      pages_{Page(isatty(STDOUT_FILENO) == 1), Page(isatty(STDERR_FILENO) == 1)} {
  if (!settings_.fold) return;
  const size_t ranks = settings_.only_ranks.empty() ? job_.size : settings_.only_ranks.size();
  for (auto& folder : folders_) folder.emplace(ranks);
}

LineStyle RankOutput::style_of(uint32_t host, const StartAttempt& start, const Place& place) const {
  LineStyle style;
  style.timestamps = settings_.style.timestamps;
  if (!settings_.style.prefix) return style;
  style.prefix = fill_template(settings_.style.prefix_template,
                               {{"rank", std::to_string(place.rank)},
                                {"local_rank", std::to_string(place.local_rank)},
                                {"size", std::to_string(start.size)},
                                {"attempt", std::to_string(start.attempt)},
                                {"host", job_.hosts[host].name}});
  return style;
}

void RankOutput::open(uint32_t host, const StartAttempt& start) {
  if (!settings_.log_dir.empty()) open_logs(start.attempt);
  for (const Place& place : start.places) {
    for (const Stream which : {Stream::out, Stream::err}) {
      OpenStream& stream = streams_[Key{start.attempt, place.rank, which}];
      stream.host = host;
      stream.style = style_of(host, start, place);
      stream.window = start.credit;
      if (settings_.log_dir.empty()) continue;
      stream.log_path =
          log_file(settings_.log_dir, log_number_, place.rank, job_.hosts[host].name, which);
      files_.append(stream.log_path, "");
    }
  }
}

// The first attempt's folder is there; those of later ones are made where a disk that hangs stops
// nothing else.
void RankOutput::open_logs(uint32_t attempt) {
  if (attempt == logged_attempt_) return;
  if (++log_number_ > settings_.logged_before + 1) files_.claim(settings_.log_dir, log_number_);
  logged_attempt_ = attempt;
  files_.link(settings_.log_dir + "/latest", log_folder_name(log_number_));
}

void RankOutput::print(Stream stream, std::string text, Written credit) {
  (stream == Stream::out ? out_ : err_).print(stream, std::move(text), credit);
}

void RankOutput::put(std::string& out, const Key& key, const OpenStream& stream,
                     std::string_view piece, Time now) {
  const auto [attempt, rank, which] = key;
  std::optional<LineFolder>& folder = folders_[static_cast<size_t>(which)];
  if (!folder) return page(which).put(out, stream.style, piece);
  const std::string_view line = without_end(piece);
  if (line.empty() && piece.back() == '\r') return;
  folder->put(rank, stream.style.prefix, line, now);
}

void RankOutput::take(uint32_t host, const Output& m, Time now) {
  const Key key{m.attempt, m.rank, m.stream};
  const auto found = streams_.find(key);
  if (found == streams_.end() || found->second.host != host) return;
  OpenStream& stream = found->second;
  const std::string_view bytes = granted_part(stream, m.bytes);
  if (bytes.empty()) return;
  const Written credit{m.attempt, m.rank, m.stream, bytes.size()};
  if (!stream.log_path.empty()) files_.append(stream.log_path, std::string(bytes), credit);
  std::string text;
  if (shown(m.rank, m.stream)) {
    text.reserve(bytes.size() + bytes.size() / 2);
    stream.cutter.feed(bytes, [&](std::string_view piece) { put(text, key, stream, piece, now); });
    stream.since = now;
    // Folded lines are shown whole.
    if (stream.cutter.waiting() && !stream.watched && !settings_.fold) {
      stream.watched = true;
      partial_.emplace_back(now, key);
    }
  }
  print(m.stream, std::move(text), credit);
  show_folded(now, false);
}

// What a host sends beyond its credit would fill our memory; no agent of ours does.
std::string_view RankOutput::granted_part(OpenStream& stream, std::string_view bytes) {
  const uint64_t room = stream.window + stream.granted - stream.received;
  const std::string_view part = bytes.substr(0, room);
  stream.received += part.size();
  if (part.size() == bytes.size() || !greedy_.insert(stream.host).second) return part;
  if (settings_.verbosity >= 0) {
    tell(terminal_lines("hvdlaunch: ", "output of ranks on " + job_.hosts[stream.host].name +
                                           " is not whole: the host sends more than it may, "
                                           "which is dropped"));
  }
  return part;
}

std::string RankOutput::rest_of(const Key& key, OpenStream& stream, Time now) {
  std::string text;
  stream.cutter.flush([&](std::string_view piece) { put(text, key, stream, piece, now); });
  return text;
}

RankOutput::Streams::iterator RankOutput::close(Streams::iterator stream) {
  const Stream which = std::get<Stream>(stream->first);
  std::string text = rest_of(stream->first, stream->second, now());
  page(which).finish(text, stream->second.style);
  if (!text.empty() && !discarded(which)) print(which, std::move(text));
  const auto next = streams_.erase(stream);
  if (streams_.empty()) show_folded(now(), true);
  return next;
}

void RankOutput::end(uint32_t host, const OutputEnd& end) {
  const auto found = streams_.find(Key{end.attempt, end.rank, end.stream});
  if (found != streams_.end() && found->second.host == host) close(found);
}

void RankOutput::end_host(uint32_t host) {
  for (auto stream = streams_.begin(); stream != streams_.end();) {
    stream = stream->second.host == host ? close(stream) : std::next(stream);
  }
}

void RankOutput::tell(const std::string& lines) {
  std::string text;
  page(Stream::err).close_line(text);
  print(Stream::err, text + lines);
}

void RankOutput::act(Time now) {
  while (!partial_.empty() && partial_.front().first + kPatience <= now) {
    const Key key = partial_.front().second;
    partial_.pop_front();
    const auto found = streams_.find(key);
    if (found == streams_.end()) continue;
    OpenStream& stream = found->second;
    stream.watched = stream.cutter.waiting() && stream.since + kPatience > now;
    if (stream.watched) {
      partial_.emplace_back(stream.since, key);
    } else {
      print(std::get<Stream>(key), rest_of(key, stream, now));
    }
  }
  show_folded(now, false);
}

std::optional<Time> RankOutput::deadline() const {
  std::optional<Time> first;
  if (!partial_.empty()) first = partial_.front().first + kPatience;
  for (const auto& folder : folders_) {
    if (folder) first = earlier(first, folder->deadline());
  }
  return first;
}

void RankOutput::show_folded(Time now, bool all) {
  for (const Stream which : {Stream::out, Stream::err}) {
    auto& folder = folders_[static_cast<size_t>(which)];
    if (!folder) continue;
    std::string text;
    while (auto folded = folder->take(now, all)) {
      LineStyle style{std::move(folded->prefix), settings_.style.timestamps};
      if (folded->count > 1) style.prefix = "x" + std::to_string(folded->count) + ": ";
      page(which).put(text, style, folded->text + "\n");
    }
    if (!text.empty() && !discarded(which)) print(which, std::move(text));
  }
}

void RankOutput::note_written(const Written& written, uint64_t OpenStream::*counter) {
  const auto found = streams_.find(Key{written.attempt, written.rank, written.stream});
  if (found == streams_.end()) return;
  OpenStream& stream = found->second;
  stream.*counter += written.bytes;
  const uint64_t done =
      stream.log_path.empty() ? stream.shown : std::min(stream.shown, stream.logged);
  // In large pieces: each costs both sides a wake-up.
  if (done - stream.granted < std::max<uint64_t>(stream.window / 4, 1)) return;
  credit_.emplace_back(
      stream.host, Credit{written.attempt, written.rank, written.stream, done - stream.granted});
  stream.granted = done;
}

std::vector<std::pair<uint32_t, Credit>> RankOutput::take_credit() {
  for (Writer* screen : {&out_, &err_}) {
    for (const Written& written : screen->take_written()) {
      note_written(written, &OpenStream::shown);
    }
  }
  for (const Written& written : files_.take_written()) {
    note_written(written, &OpenStream::logged);
  }
  return std::exchange(credit_, {});
}

}  // namespace hvd
