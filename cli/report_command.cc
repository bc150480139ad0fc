#include "cli/report_command.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/exit_codes.h"
#include "base/fd.h"
#include "base/time.h"
#include "launcher/host_spec.h"
#include "launcher/state_folder.h"
#include "launcher/terminal_text.h"

namespace hvd {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongestReport = 16 << 20;
constexpr size_t kLongestLog = 1 << 30;

bool is_folder(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

// What the launcher said at the end, and the cause, which it had said before.
Result<std::string> told(const std::string& report, const std::string& path) {
  const Json json = Json::parse(report, nullptr, false);
  const auto lines = json.is_object() ? json.find("told") : json.end();
  if (!json.is_object() || lines == json.end() || !lines->is_array()) {
    return Error{path + " is no report of this version: --json prints it as it is"};
  }
  std::string text = terminal_lines("", "job " + text_of(json, "job"));
  const auto cause = json.find("cause");
  if (cause != json.end() && cause->is_object() && !text_of(*cause, "text").empty()) {
    text += terminal_lines("", text_of(*cause, "text"));
  }
  for (const Json& line : *lines) {
    if (line.is_string()) text += terminal_lines("", line.get<std::string>());
  }
  return text;
}

// The starts and stops of attempts; every host was told of them.
std::string attempts_of(std::string_view log) {
  std::string text;
  std::string last;
  while (!log.empty()) {
    const size_t end = std::min(log.find('\n'), log.size());
    const Json line = Json::parse(log.substr(0, end), nullptr, false);
    log.remove_prefix(std::min(end + 1, log.size()));
    if (!line.is_object()) continue;
    const std::string message = text_of(line, "message");
    const auto attempt = line.find("attempt"), at = line.find("t");
    if (attempt == line.end() || !attempt->is_number_unsigned()) continue;
    if (at == line.end() || !at->is_number()) continue;
    const bool starts = message == "start-attempt";
    if (!starts && message != "stop-attempt") continue;
    const std::string what = "attempt " + std::to_string(attempt->get<uint64_t>()) +
                             (starts ? " started" : " was stopped");
    if (what == last) continue;
    last = what;
    const Duration when(static_cast<int64_t>(at->get<double>() * 1e9));
    const std::string reason = starts ? "" : text_of(line, "reason");
    text += terminal_lines(
        "", what + " at " + format_duration(when) + (reason.empty() ? "" : ": " + reason));
  }
  return text;
}

}  // namespace

Result<ReportCommand> parse_report(const std::vector<std::string>& words) {
  ReportCommand command;
  for (const std::string& word : words) {
    if (word == "--json") {
      command.json = true;
    } else if (word.starts_with("-")) {
      return Error{"unknown option " + in_quotes(word) + " of report: expected --json"};
    } else if (!command.run.empty()) {
      return Error{"unexpected word " + in_quotes(word) + ": expected one job"};
    } else {
      command.run = word;
    }
  }
  if (command.run.empty()) {
    return Error{"no job is named: expected hvdlaunch report RUN_DIR|JOB [--json]"};
  }
  return command;
}

ReportShown show_report(const ReportCommand& command) {
  const StateFolder state;
  const bool by_path = command.run.find('/') != std::string::npos || is_folder(command.run);
  const std::string folder = by_path ? command.run : state.job_file(command.run, "");
  const std::string path = folder + "/report.json";
  const Result<std::string> report = read_file(path, kLongestReport);
  if (report) {
    if (command.json) return {0, *report, ""};
    const Result<std::string> text = told(*report, path);
    return text ? ReportShown{0, *text, ""} : ReportShown{kExitUsage, "", text.error().text};
  }
  const Result<std::string> log = read_file(folder + "/events.jsonl", kLongestLog);
  if (!log) {
    return {kExitNothingToResume, "", "there is no history of a job in " + folder};
  }
  if (command.json) return {kExitNothingToResume, "", "the job left no report: " + path};
  return {
      0, "no report was left: the job still runs, or its launcher was killed\n" + attempts_of(*log),
      ""};
}

}  // namespace hvd
