// What the ranks write, on its way to our reader and to log files: bytes become lines, lines are
// shown behind their prefix, raw bytes go into files, and what was written is credit again. Also
// our own lines, since they share the reader's page.
//
// Stdout, stderr and the log files have a writer thread each, so that what one reader or a log
// folder does not take stops none of the others, until the credit of the ranks is used up.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/message.h"
#include "launcher/launch.h"
#include "launcher/line_cutter.h"
#include "launcher/line_folder.h"
#include "launcher/page.h"
#include "launcher/shown_table.h"
#include "launcher/writer.h"
#include "supervisor/job.h"

namespace hvd {

class RankOutput {
 public:
  // `out` and `err` write stdout and stderr; they are one where these are one file, whose reader
  // then sees all in the order it was said.
  RankOutput(const Job& job, const LaunchSettings& settings, Writer& out, Writer& err,
             Writer& files);

  // The streams of a host's ranks in an attempt that begins, or that another launcher began.
  void open(uint32_t host, const StartAttempt& start, bool taken_over = false);
  // Notes there what was shown. It outlives the writers.
  void note_in(ShownTable& table) { table_ = &table; }
  // So many attempts had a log folder when this one was the newest.
  void count_logs(uint32_t attempt, uint32_t folders) { counted_ = {attempt, folders}; }
  // What a host says of ranks that are not its own is dropped.
  void take(uint32_t host, const Output& output, Time now);
  void end(uint32_t host, const OutputEnd& end);
  // What the host's ranks have not said is lost.
  void end_host(uint32_t host);
  // Nobody reads stdout any more: what comes for it is dropped, but for the log files.
  void discard() { discarding_ = true; }
  // All that was said is on its way to its reader.
  bool ended() const { return streams_.empty(); }
  void drop_all() { streams_.clear(); }

  // Whole lines of ours, to standard error.
  void tell(const std::string& lines);

  // Shows what has waited long enough for its end, or for other ranks to say the same.
  void act(Time now);
  std::optional<Time> deadline() const;

  // Where the host's streams go on over another connection.
  std::vector<OutputPosition> positions(uint32_t host) const;

  // What the writers have written, as credit for the host's agent.
  std::vector<std::pair<uint32_t, Credit>> take_credit();

 private:
  using Key = std::tuple<uint32_t, uint32_t, Stream>;  // attempt, rank, stream
  struct OpenStream {
    uint32_t host = 0;
    LineStyle style;
    std::string log_path;  // empty: none
    uint64_t window = 0;   // credit it began with
    LineCutter cutter;
    Time since{};          // of what the cutter holds
    bool watched = false;  // stands in partial_
    // Bytes so far; granted: beside the window.
    uint64_t received = 0, shown = 0, logged = 0, granted = 0;
    // An earlier launcher showed and logged so many already.
    uint64_t shown_before = 0, logged_before = 0;
    uint64_t* mark = nullptr;  // in the table
  };

  bool discarded(Stream stream) const {
    return discarding_ && (one_page_ || stream == Stream::out);
  }
  bool shown(uint32_t rank, Stream stream) const {
    if (discarded(stream)) return false;
    return settings_.only_ranks.empty() || settings_.only_ranks.count(rank) > 0;
  }
  void open_logs(uint32_t attempt);
  void begin(OpenStream& stream, const Key& key, bool taken_over);
  Written noted(const Key& key, const OpenStream& stream, uint64_t credit) const;
  LineStyle style_of(uint32_t host, const StartAttempt& start, const Place& place) const;
  void print(Stream stream, std::string text, Written credit = {});
  Page& page(Stream stream) { return pages_[one_page_ ? 0 : static_cast<size_t>(stream)]; }
  void put(std::string& out, const Key& key, const OpenStream& stream, std::string_view piece,
           Time now);
  // The bytes that there was credit for.
  std::string_view granted_part(OpenStream& stream, std::string_view bytes);
  // What the stream's cutter holds, as text to show.
  std::string rest_of(const Key& key, OpenStream& stream, Time now);
  using Streams = std::map<Key, OpenStream>;
  Streams::iterator close(Streams::iterator stream);
  void show_folded(Time now, bool all);
  void note_folded(Stream which);
  void note_written(const Written& written, uint64_t OpenStream::*counter);

  const Job& job_;
  const LaunchSettings& settings_;
  Writer& out_;
  Writer& err_;
  Writer& files_;
  uint32_t log_number_, logged_attempt_ = 0;  // the newest attempt's folder, as we count
  std::map<Key, OpenStream> streams_;
  std::deque<std::pair<Time, Key>> partial_;  // streams whose cutter held something, oldest first
  const bool one_page_;                       // stdout and stderr are one file
  Page pages_[2];
  std::optional<LineFolder> folders_[2];
  std::vector<std::pair<uint32_t, Credit>> credit_;
  std::set<uint32_t> greedy_;  // hosts that sent more than their credit
  bool discarding_ = false;
  ShownTable* table_ = nullptr;
  std::pair<uint32_t, uint32_t> counted_{};
};

}  // namespace hvd
