#include "launcher/rank_output.h"

#include <sys/stat.h>
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

void RankOutput::open(uint32_t host, const StartAttempt& start, bool taken_over) {
  if (taken_over) {
    log_number_ = settings_.logged_before + counted_.second + start.attempt - counted_.first;
    logged_attempt_ = start.attempt;
  } else if (!settings_.log_dir.empty()) {
    open_logs(start.attempt);
  }
  for (const Place& place : start.places) {
    for (const Stream which : {Stream::out, Stream::err}) {
      const Key key{start.attempt, place.rank, which};
      OpenStream& stream = streams_[key];
      stream.host = host;
      stream.style = style_of(host, start, place);
      stream.window = start.credit;
      if (!settings_.log_dir.empty()) {
        stream.log_path =
            log_file(settings_.log_dir, log_number_, place.rank, job_.hosts[host].name, which);
        files_.append(stream.log_path, "");
      }
      begin(stream, key, taken_over);
    }
  }
}

// What was shown and what was logged may differ: the agent is asked for all that is missing in one.
void RankOutput::begin(OpenStream& stream, const Key& key, bool taken_over) {
  if (table_ == nullptr) return;
  const auto [attempt, rank, which] = key;
  if (taken_over) {
    stream.shown_before = table_->shown(attempt, rank, which);
    stream.logged_before = UINT64_MAX;
    struct stat st;
    if (!stream.log_path.empty()) {
      stream.logged_before =
          stat(stream.log_path.c_str(), &st) == 0 ? static_cast<uint64_t>(st.st_size) : 0;
    }
    stream.received = std::min(stream.shown_before, stream.logged_before);
    stream.granted = stream.shown = stream.logged = stream.received;
  }
  stream.mark = table_->begin(attempt, rank, which, stream.shown_before);
}

// All but what waits for the end of its line, or for other ranks to say the same.
Written RankOutput::noted(const Key& key, const OpenStream& stream, uint64_t credit) const {
  const auto [attempt, rank, which] = key;
  Written written{attempt, rank, which, credit};
  const std::optional<LineFolder>& folder = folders_[static_cast<size_t>(which)];
  if (stream.mark == nullptr || (folder && folder->deadline())) return written;
  written.shown = std::max(stream.received - stream.cutter.held(), stream.shown_before);
  written.mark = stream.mark;
  return written;
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
  const uint64_t begin = stream.received;
  const std::string_view bytes = granted_part(stream, m.bytes);
  if (bytes.empty()) return;
  const auto after = [&](uint64_t done) {
    return bytes.substr(std::min<uint64_t>(done - std::min(done, begin), bytes.size()));
  };
  if (!stream.log_path.empty()) {
    files_.append(stream.log_path, std::string(after(stream.logged_before)),
                  Written{m.attempt, m.rank, m.stream, bytes.size()});
  }
  const std::string_view fresh = after(stream.shown_before);
  std::string text;
  if (shown(m.rank, m.stream)) {
    text.reserve(fresh.size() + fresh.size() / 2);
    stream.cutter.feed(fresh, [&](std::string_view piece) { put(text, key, stream, piece, now); });
    stream.since = now;
    // Folded lines are shown whole.
    if (stream.cutter.waiting() && !stream.watched && !settings_.fold) {
      stream.watched = true;
      partial_.emplace_back(now, key);
    }
  }
  print(m.stream, std::move(text), noted(key, stream, bytes.size()));
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
  if (!text.empty() && !discarded(which)) {
    print(which, std::move(text), noted(stream->first, stream->second, 0));
  }
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
      std::string rest = rest_of(key, stream, now);
      print(std::get<Stream>(key), std::move(rest), noted(key, stream, 0));
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
    const bool any = !text.empty();
    if (any && !discarded(which)) print(which, std::move(text));
    if (any && !folder->deadline()) note_folded(which);
  }
}

// No line waits for others now.
void RankOutput::note_folded(Stream which) {
  for (const auto& [key, stream] : streams_) {
    if (std::get<Stream>(key) == which && stream.mark != nullptr) {
      print(which, {}, noted(key, stream, 0));
    }
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

std::vector<OutputPosition> RankOutput::positions(uint32_t host) const {
  std::vector<OutputPosition> positions;
  for (const auto& [key, stream] : streams_) {
    const auto& [attempt, rank, which] = key;
    if (stream.host == host)
      positions.push_back({attempt, rank, which, stream.received, stream.granted});
  }
  return positions;
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
