#include "launcher/report.h"

namespace hvd {

namespace {

// What `resume` would go on from, for people.
std::string newest_checkpoint(const Finish& f) {
  if (f.newest_step) return "step " + std::to_string(*f.newest_step);
  return f.foreign_path.empty() ? "" : "the program's own, " + f.foreign_path;
}

}  // namespace

std::vector<std::string> report_texts(const Job& job, const Finish& f, int verbosity) {
  std::vector<std::string> texts;
  const bool all = verbosity >= 0;
  if (f.code == 0) {
    if (f.attempts > 1 && all) {
      texts.push_back("finished after " + std::to_string(f.attempts) + " attempts");
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
