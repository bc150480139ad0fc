// The plan as people read it.
#include <algorithm>
#include <cstdio>

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
    char escape[8];
    if (control && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)) {
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
      out += escape;
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

std::string padded(const std::string& text, size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 0, ' ');
}

}  // namespace

std::string dry_run_text(const RunCommand& command) {
  std::string program;
  for (const std::string& word : command.job.argv) {
    program += (program.empty() ? "" : " ") + shell_word(word);
  }
  size_t width = std::string("host").size();
  for (const Host& host : command.job.hosts) width = std::max(width, host.name.size());
  std::string text = "rank  " + padded("host", width) + "  local rank  command\n";
  for (const HostPlaces& places : command.placement) {
    const Host& host = command.job.hosts[places.host];
    for (const Place& place : places.places) {
      text += padded(std::to_string(place.rank), 4) + "  " + padded(host.name, width) + "  " +
              padded(std::to_string(place.local_rank), 10) + "  " + program + "\n";
    }
  }
  for (const Host& host : command.job.hosts) {
    if (host.spare) text += "-     " + padded(host.name, width) + "  -           (spare)\n";
  }
  return text;
}

}  // namespace hvd
