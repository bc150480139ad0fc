#include "supervisor/rules.h"

#include <regex.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <utility>

#include "base/process.h"

namespace hvd {

namespace {

constexpr const char* kActions[] = {"stop", "restart", "exclude-host", "ignore-budget"};
constexpr int kMostCode = 255;

// A compiled regular expression for as long as it is needed.
class Regex {
 public:
  explicit Regex(const std::string& pattern)
      : error_(regcomp(&regex_, pattern.c_str(), REG_EXTENDED | REG_NOSUB | REG_NEWLINE)) {}
  ~Regex() {
    if (error_ == 0) regfree(&regex_);
  }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  std::string error() const {
    if (error_ == 0) return "";
    std::array<char, 128> text{};
    regerror(error_, &regex_, text.data(), text.size());
    return text.data();
  }
  bool finds(const std::string& text) const {
    return error_ == 0 && regexec(&regex_, text.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  regex_t regex_{};
  int error_;
};

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

Result<int> read_code(std::string_view text) {
  int code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code);
  if (error != std::errc() || end != text.data() + text.size() || code < 1 || code > kMostCode) {
    return Error{"expected an exit code from 1 to 255 behind exit"};
  }
  return code;
}

// "KILL", "SIGKILL" or "9".
Result<int> read_signal(std::string_view text) {
  for (int signal = 1; signal < NSIG; ++signal) {
    const std::string name = signal_name(signal);
    if (text == name || "SIG" + std::string(text) == name || text == std::to_string(signal)) {
      return signal;
    }
  }
  return Error{"expected the name of a signal such as KILL behind signal"};
}

Status read_event(std::string_view text, Rule& rule) {
  const size_t blank = text.find(' ');
  const std::string_view word = text.substr(0, blank);
  const std::string_view rest = blank == std::string_view::npos ? "" : trim(text.substr(blank));
  const auto number = [&](Rule::On on, const Result<int>& value) -> Status {
    if (!value) return value.error();
    rule.on = on;
    rule.number = *value;
    return Ok{};
  };
  if (word == "exit") return number(Rule::On::exit_code, read_code(rest));
  if (word == "signal") return number(Rule::On::signal, read_signal(rest));
  if (word == "log" || word == "host") {
    if (rest.empty()) return Error{"expected something behind " + std::string(word)};
    rule.on = word == "log" ? Rule::On::log : Rule::On::host;
    rule.pattern = rest;
    const std::string wrong = word == "log" ? Regex(rule.pattern).error() : "";
    if (wrong.empty()) return Ok{};
    return Error{"its regular expression cannot be read: " + wrong};
  }
  constexpr std::pair<std::string_view, Rule::On> kPlain[] = {
      {"memory", Rule::On::memory}, {"stall", Rule::On::stall}, {"host-lost", Rule::On::host_lost}};
  for (const auto& [name, on] : kPlain) {
    if (text != name) continue;
    rule.on = on;
    return Ok{};
  }
  return Error{
      "expected exit CODE, signal NAME, memory, log REGEX, host NAME, stall or host-lost before "
      "the colon"};
}

bool fits(const Rule& rule, const FailureTraits& failure) {
  switch (rule.on) {
    case Rule::On::exit_code:
      return failure.exit_code == rule.number;
    case Rule::On::signal:
      return failure.signal == rule.number;
    case Rule::On::memory:
      return failure.memory;
    case Rule::On::log:
      return Regex(rule.pattern).finds(failure.last_lines);
    case Rule::On::host:
      return failure.host == rule.pattern;
    case Rule::On::stall:
      return failure.stall;
    case Rule::On::host_lost:
      return failure.host_lost;
  }
  return false;
}

}  // namespace

Result<Rule> parse_rule(const std::string& text) {
  Rule rule;
  rule.text = text;
  const size_t colon = text.rfind(':');
  const std::string_view action =
      colon == std::string::npos ? "" : trim(std::string_view(text).substr(colon + 1));
  const auto known = std::find(std::begin(kActions), std::end(kActions), action);
  if (known == std::end(kActions)) {
    return Error{
        "expected a colon and stop, restart, exclude-host or ignore-budget at its end, as in "
        "'exit 77: stop'"};
  }
  rule.action = static_cast<Rule::Action>(known - std::begin(kActions));
  const Status status = read_event(trim(std::string_view(text).substr(0, colon)), rule);
  if (!status) return status.error();
  return rule;
}

const Rule* find_rule(const std::vector<Rule>& rules, const FailureTraits& failure) {
  const auto found = std::find_if(rules.begin(), rules.end(),
                                  [&](const Rule& rule) { return fits(rule, failure); });
  return found == rules.end() ? nullptr : &*found;
}

}  // namespace hvd
