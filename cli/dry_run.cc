// The plan as people read it.
#include <fmt/core.h>

#include <algorithm>

#include "cli/options.h"
#include "launcher/host_spec.h"

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

std::string dry_run_text(const RunCommand& command) {
  std::string program;
  for (const std::string& word : command.job.argv) {
    program += (program.empty() ? "" : " ") + shell_word(word);
  }
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
      text += line(place.rank, host.name, place.local_rank, program);
    }
  }
  for (const Host& host : command.job.hosts) {
    if (host.spare) text += line("-", host.name, "-", "(spare)");
  }
  return text;
}

}  // namespace hvd
