// The plan as people read it.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/template.h"
#include "cli/options.h"
#include "supervisor/agent/environment.h"

namespace hvd {

namespace {

// A word as a shell would take it; control characters are escaped.
std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  const bool control = std::any_of(word.begin(), word.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  std::string out = control ? "$'" : "'";
  for (const char c : word) {
    if (control && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else if (c == '\'') {
      out += control ? "\\'" : "'\\''";
    } else if (control && c == '\\') {
      out += "\\\\";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace

namespace {

// What the rank's first attempt would run. What it would resume from is asked of the hosts only
// then: where there can be something, those names stay.
std::string command_of(const Job& job, const Place& place, const std::string& host_name) {
  StartAttempt start;
  start.attempt = 1;
  start.size = job.size;
  std::map<std::string, std::string> values;
  if (job.substitute) values = substitutes(start, place, host_name);
  if (job.resume || !job.checkpoint_dir.empty()) {
    values.erase("resume_from");
    values.erase("resume_step");
  }
  std::string text = shell_word(job.argv[0]);
  for (size_t i = 1; i < job.argv.size(); ++i) {
    text += " " + shell_word(fill_template(job.argv[i], values));
  }
  return text;
}

}  // namespace

std::string dry_run_text(const RunCommand& command) {
  size_t width = std::string("host").size();
  for (const Host& host : command.job.hosts) width = std::max(width, host.name.size());
  const auto line = [width](auto rank, const std::string& host, auto local_rank,
                            const std::string& what) {
    return fmt::format("{:<4}  {:<{}}  {:<10}  {}\n", rank, host, width, local_rank, what);
  };
  std::string text = line("rank", "host", "local rank", "command");
  for (const HostPlaces& places : command.placement) {
    const Host& host = command.job.hosts[places.host];
    for (const Place& place : places.places) {
      text +=
          line(place.rank, host.name, place.local_rank, command_of(command.job, place, host.name));
    }
  }
  for (const Host& host : command.job.hosts) {
    if (host.spare) text += line("-", host.name, "-", "(spare)");
  }
  return text;
}

}  // namespace hvd
