#include "launcher/report.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace hvd {

namespace {

constexpr size_t kMostAttempts = 5;
constexpr size_t kMostLosses = 4;
constexpr Duration kWorthTelling = std::chrono::milliseconds(50);

// What `resume` would go on from, for people.
std::string newest_checkpoint(const Finish& f) {
  if (f.newest_step) return "step " + std::to_string(*f.newest_step);
  return f.foreign_path.empty() ? "" : "the program's own, " + f.foreign_path;
}

// What the wall time went into: the work first, then the largest of all else.
std::string time_text(const RunAccount& run) {
  std::vector<std::pair<Duration, std::string>> lost;
  for (size_t i = 0; i < run.spent.size(); ++i) {
    const auto spent = static_cast<Spent>(i);
    if (spent != Spent::working) lost.emplace_back(run.spent[i], spent_name(spent));
  }
  lost.emplace_back(run.unsaved, "working on " + std::to_string(run.steps_lost) + " unsaved steps");
  std::stable_sort(lost.begin(), lost.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = "time: " + format_duration(run.wall);
  if (run.goodput) {
    text += ", of which " + std::to_string(std::lround(*run.goodput * 100)) +
            " % went into steps that were kept";
  }
  size_t told = 0;
  for (const auto& [time, what] : lost) {
    if (time < kWorthTelling || told == kMostLosses) break;
    text += (told++ == 0 ? "; " : ", ") + format_duration(time) + " " + what;
  }
  return text;
}

// Each attempt but the last, which the rest of the report is about; the newest of many.
std::string attempts_text(const RunAccount& run) {
  const size_t before = run.attempts.size() - 1;
  const size_t first = before - std::min(before, kMostAttempts);
  std::string text = "attempts before:";
  if (first > 0) text += "\n  " + std::to_string(first) + " earlier ones";
  for (size_t i = first; i < before; ++i) {
    const AttemptAccount& one = run.attempts[i];
    text += "\n  " + std::to_string(one.number) + ", from " + format_duration(one.began) + " to " +
            format_duration(one.ended) + ": " + one.ending;
    const AttemptAccount& next = run.attempts[i + 1];
    if (next.from_memory) {
      text += "; then from step " + std::to_string(next.first_step) + " in memory";
    }
    if (one.steps_lost > 0) text += "; " + std::to_string(one.steps_lost) + " steps to redo";
  }
  return text;
}

}  // namespace

std::vector<std::string> report_texts(const Job& job, const Finish& f, int verbosity) {
  std::vector<std::string> texts;
  if (f.leaves) {
    return {"exit code " + std::to_string(f.code) + ", from hvdlaunch"};
  }
  const bool all = verbosity >= 0;
  const bool several = f.account.attempts.size() > 1;
  if (!f.slow.empty() && all) {
    std::string text = "ranks that others waited for:";
    for (const std::string& one : f.slow) text += "\n  " + one;
    texts.push_back(std::move(text));
  }
  if (f.code == 0) {
    if (f.attempts > 1 && all) {
      texts.push_back("finished after " + std::to_string(f.attempts) + " attempts");
      if (several) texts.push_back(attempts_text(f.account));
      texts.push_back(time_text(f.account));
    }
    return texts;
  }
  if (!f.cause.last_lines.empty() && all) {
    texts.push_back("its last lines on stderr:\n" + f.cause.last_lines);
  }
  if (!f.consequences.empty() && all) {
    std::string text = "what followed:";
    for (const std::string& one : f.consequences) text += "\n  " + one;
    texts.push_back(std::move(text));
  }
  if (several && all) texts.push_back(attempts_text(f.account));
  if (f.attempts > 0 && (several || f.account.goodput) && all) {
    texts.push_back(time_text(f.account));
  }
  if (f.attempts > 0 && !job.checkpoint_dir.empty() && all) {
    const std::string newest = newest_checkpoint(f);
    texts.push_back("attempts: " + std::to_string(f.attempts) +
                    ", newest whole checkpoint: " + (newest.empty() ? "none" : newest));
    if (!newest.empty()) texts.push_back("to go on: hvdlaunch resume " + job.checkpoint_dir);
  }
  const std::string who = f.from_worker && f.cause.rank ? "rank " + std::to_string(*f.cause.rank) +
                                                              " on " + job.hosts[*f.cause.host].name
                                                        : "hvdlaunch";
  texts.push_back("exit code " + std::to_string(f.code) + ", from " + who);
  return texts;
}

}  // namespace hvd
