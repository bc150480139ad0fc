#include "cli/options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <utility>

#include "cli/complete.h"
#include "launcher/host_spec.h"
#include "launcher/suggest.h"

namespace hvd {

namespace {

// First words that will mean something in a later version.
constexpr std::array<std::string_view, 6> kReserved = {"check", "status", "logs",
                                                       "stop",  "drain",  "add-host"};

// The command line before values are looked at.
struct Line {
  std::vector<std::string> options;  // each spelled --name, its value the next word
  std::vector<std::string> folders;  // `resume` only: words that are no options
  std::vector<std::string> program;
};

Error unknown_option(const std::string& word) {
  std::vector<std::string> known;
  for (const Option& option : options()) {
    for (const std::string& spelling : spellings(option)) {
      if (spelling.starts_with("--")) known.push_back(spelling);
    }
  }
  const std::string near = word.size() > 2 ? nearest(word, known) : "";
  return Error{
      "unknown option " + in_quotes(word) +
      (near.empty() ? ": `hvdlaunch --help` lists them" : ": did you mean '" + near + "'?")};
}

// Cuts the words into options with their values and the program, so that the library that parses
// options sees neither the program's words nor a spelling it reads otherwise than users mean it:
// -np 16, values that begin with a dash, empty values.
class Splitter {
 public:
  Splitter(const std::vector<std::string>& words, bool resume) : words_(words), resume_(resume) {}

  Result<Line> split() {
    for (; at_ < words_.size(); ++at_) {
      const std::string& word = words_[at_];
      if (word == "--") {
        ++at_;
        break;
      }
      if (word.size() < 2 || word[0] != '-') {
        if (!resume_) break;
        line_.folders.push_back(word);
        continue;
      }
      const Status status = word[1] == '-' ? long_option(word.substr(2)) : dashed(word.substr(1));
      if (!status) return status.error();
    }
    line_.program.assign(words_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, words_.size())),
                         words_.end());
    return std::move(line_);
  }

 private:
  // "np", "np=16", with one dash or two.
  Status long_option(const std::string& text) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const Option* option = name.size() > 1 ? find_option(name) : nullptr;
    if (option == nullptr) return unknown_option("--" + name);
    if (equals == std::string::npos) return take(*option, "--" + name);
    if (*option->value == '\0') return Error{"--" + name + " takes no value"};
    put(*option, text.substr(equals + 1));
    return Ok{};
  }

  // One dash: a long name as mpirun has it, -np16, or letters, of which the last may have a value.
  Status dashed(const std::string& text) {
    const std::string name = text.substr(0, text.find('='));
    if (name.size() > 1 && find_option(name) != nullptr) return long_option(text);
    if (text.starts_with("np") && text.find_first_not_of("0123456789", 2) == std::string::npos) {
      put(*find_option("np"), text.substr(2));
      return Ok{};
    }
    for (size_t i = 0; i < text.size(); ++i) {
      const Option* option = find_option(text.substr(i, 1));
      if (option == nullptr) return unknown_option("-" + text);
      if (*option->value == '\0') {
        put(*option, std::nullopt);
      } else if (i + 1 < text.size()) {
        put(*option, text.substr(i + 1));
        return Ok{};
      } else {
        return take(*option, "-" + text.substr(i, 1));
      }
    }
    return Ok{};
  }

  // An option whose value, if it has one, is the next word.
  Status take(const Option& option, const std::string& spelling) {
    if (*option.value == '\0') {
      put(option, std::nullopt);
      return Ok{};
    }
    const bool none = at_ + 1 >= words_.size() || words_[at_ + 1] == "--";
    const std::string next = none ? "" : words_[at_ + 1];
    const bool option_next = next.starts_with("--") && find_option(next.substr(2)) != nullptr;
    if (none || option_next) {
      return Error{spelling + " needs a value: expected " + spelling + " " + option.value};
    }
    put(option, next);
    ++at_;
    return Ok{};
  }

  void put(const Option& option, std::optional<std::string> value) {
    line_.options.push_back("--" + long_name(option));
    if (value) line_.options.push_back(std::move(*value));
  }

  const std::vector<std::string>& words_;
  bool resume_;
  size_t at_ = 0;
  Line line_;
};

// Runs the options through CLI11.
class Parser {
 public:
  Parser() : app_("", "hvdlaunch") {
    app_.set_help_flag();
    app_.positionals_at_end();
    for (const Option& option : options()) {
      const std::string name = "--" + long_name(option);
      CLI::Option* added = *option.value == '\0'
                               ? app_.add_flag(name)
                               : app_.add_option(name, [](const CLI::results_t&) { return true; });
      if (*option.value != '\0') added->expected(1)->allow_extra_args(false);
      added->multi_option_policy(option.repeats ? CLI::MultiOptionPolicy::TakeAll
                                                : CLI::MultiOptionPolicy::TakeLast);
      options_.emplace_back(&option, added);
    }
  }

  Result<std::vector<Setting>> parse(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());
    try {
      app_.parse(std::move(words));
    } catch (const CLI::ParseError& error) {
      return Error{error.what()};
    }
    std::vector<Setting> settings;
    for (const auto& [option, parsed] : options_) {
      if (parsed->count() == 0) continue;
      std::vector<std::string> values = parsed->results();
      if (*option->value == '\0') values = {"true"};
      if (!option->repeats) values = {values.back()};
      settings.push_back({long_name(*option), std::move(values), Setting::Type::word, ""});
    }
    return settings;
  }

 private:
  CLI::App app_;
  std::vector<std::pair<const Option*, CLI::Option*>> options_;
};

bool has(const std::vector<Setting>& settings, const char* name) {
  return std::any_of(settings.begin(), settings.end(),
                     [name](const Setting& setting) { return setting.name == name; });
}

// What the words ask for, with the [job] tables of the host files below it.
struct Request {
  Asked asked;
  std::vector<Host> hosts;
  std::vector<std::string> notices;
};

Result<Request> read_request(const std::vector<Setting>& given) {
  Request request;
  if (const Status status = apply_settings(given, request.asked); !status) return status.error();
  auto read = read_hosts(request.asked.host_words, request.asked.host_files);
  if (!read) return read.error();
  // A value of [job] that the command line replaces must be right all the same.
  Asked unused;
  if (const Status status = apply_settings(read->job, unused); !status) return status.error();
  request.asked = Asked();
  const Status status = apply_settings(override_settings(read->job, given), request.asked);
  if (!status) return status.error();
  request.hosts = std::move(read->hosts);
  request.notices = std::move(read->notices);
  return request;
}

Result<Command> parse_run(const Line& line, const std::vector<Setting>& given,
                          const Surroundings& surroundings) {
  auto request = read_request(given);
  if (!request) return request.error();
  auto command =
      complete(Job(), request->asked, std::move(request->hosts), line.program, surroundings);
  if (!command) return command.error();
  command->notices.insert(command->notices.begin(), request->notices.begin(),
                          request->notices.end());
  return Command(std::move(*command));
}

// CKPT_DIR, or HOST:DIR as scp has it.
Status place_folder(const std::string& word, const Surroundings& surroundings,
                    ResumeCommand& command) {
  const std::string_view first = std::string_view(word).substr(0, word.find('/'));
  if (first.find(':') == std::string_view::npos) {
    command.dir = absolute_path(word, surroundings.directory);
    return Ok{};
  }
  if (!first.ends_with(':') || first.size() == word.size()) {
    return Error{in_quotes(word) +
                 ": expected HOST:DIR with a DIR that begins with /, or a folder of this machine "
                 "(./ before one that has a colon)"};
  }
  const auto spec = parse_host_spec(first.substr(0, first.size() - 1));
  if (!spec) return Error{in_quotes(word) + ": " + spec.error().text};
  if (spec->names.size() != 1 || spec->slots || spec->slots_auto) {
    return Error{in_quotes(word) + ": expected one host before the folder, without slots"};
  }
  std::vector<Host> hosts;
  add_hosts(*spec, "resume", hosts);
  command.where = hosts.front();
  command.dir = absolute_path(word.substr(first.size()), "/");
  return Ok{};
}

Result<Command> parse_resume(const Line& line, const std::vector<Setting>& given,
                             const Surroundings& surroundings) {
  if (line.folders.empty() || line.folders[0].empty()) {
    return Error{
        "no checkpoint folder is named: expected hvdlaunch resume CKPT_DIR [OPTIONS] "
        "[-- PROGRAM [ARGS...]]"};
  }
  if (line.folders.size() > 1) {
    return Error{"unexpected word " + in_quotes(line.folders[1]) +
                 ": expected one checkpoint folder, and a program after --"};
  }
  const std::string& folder = line.folders[0];
  ResumeCommand command;
  const Status placed = place_folder(folder, surroundings, command);
  if (!placed) return placed.error();
  if (has(given, "checkpoint-dir")) {
    return Error{"--checkpoint-dir is the folder that resume names already"};
  }
  auto request = read_request(given);
  if (!request) return request.error();
  command.asked = std::move(request->asked);
  command.hosts = std::move(request->hosts);
  command.argv = line.program;
  command.as_it_was = given.empty() && line.program.empty();
  command.notices = std::move(request->notices);
  return Command(std::move(command));
}

// The commands that take a job and nothing else.
template <class Kind>
Result<Command> parse_job_command(const char* name, const std::vector<std::string>& words) {
  if (words.size() == 1 && words[0] == "--help") return Command(PrintCommand{usage_text()});
  if (words.size() > 1 || (words.size() == 1 && words[0].starts_with('-'))) {
    return Error{"unexpected word " + in_quotes(words.back()) + ": expected hvdlaunch " + name +
                 " [JOB]"};
  }
  if (words.empty()) return Command(Kind{});
  if (words[0].empty() || words[0].find('/') != std::string::npos || words[0].starts_with('.')) {
    return Error{in_quotes(words[0]) + " is no job's name"};
  }
  return Command(Kind{words[0]});
}

// A command word is one as the very first word only.
std::string take_command_word(std::vector<std::string>& words) {
  if (words.empty()) return "run";
  const std::string& first = words.front();
  const std::array<std::string_view, 6> commands = {"run",    "resume", "checkpoints",
                                                    "stacks", "attach", "report"};
  const bool known = std::find(commands.begin(), commands.end(), first) != commands.end();
  const bool alone = words.size() == 1 && (first == "help" || first == "version");
  if (!known && !alone) return "run";
  const std::string word = first;
  words.erase(words.begin());
  return word;
}

}  // namespace

Surroundings surroundings() {
  Surroundings here;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=', text.empty() ? 0 : 1);
    if (equals == std::string_view::npos) continue;
    here.environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  char folder[PATH_MAX];
  here.directory = getcwd(folder, sizeof folder) != nullptr ? folder : "/";
  // The shell's spelling of the same folder, where links of an automounter are kept, is the one
  // that other hosts have too.
  const char* shell = std::getenv("PWD");
  struct stat a, b;
  if (shell != nullptr && *shell == '/' && stat(shell, &a) == 0 && stat(".", &b) == 0 &&
      a.st_dev == b.st_dev && a.st_ino == b.st_ino) {
    here.directory = absolute_path(shell, "/");
  }
  here.machine = this_machine();
  return here;
}

Result<Command> parse_command(const std::vector<std::string>& all_words,
                              const Surroundings& surroundings) {
  std::vector<std::string> words = all_words;
  const std::string word = take_command_word(words);
  if (word == "help") return Command(PrintCommand{usage_text()});
  if (word == "version") return Command(PrintCommand{"hvdlaunch " HVD_VERSION "\n"});
  if (!all_words.empty() &&
      std::find(kReserved.begin(), kReserved.end(), all_words[0]) != kReserved.end()) {
    return Error{"the command '" + all_words[0] +
                 "' is not in this version; a program of that name is run by hvdlaunch -- " +
                 all_words[0]};
  }
  if (word == "report") {
    if (words == std::vector<std::string>{"--help"}) return Command(PrintCommand{usage_text()});
    auto command = parse_report(words);
    if (!command) return command.error();
    return Command(std::move(*command));
  }
  if (word == "checkpoints") {
    if (words == std::vector<std::string>{"--help"}) return Command(PrintCommand{usage_text()});
    auto command = parse_checkpoints(words, surroundings.directory);
    if (!command) return command.error();
    return Command(std::move(*command));
  }
  if (word == "stacks") return parse_job_command<StacksCommand>("stacks", words);
  if (word == "attach") return parse_job_command<AttachCommand>("attach", words);
  const auto line = Splitter(words, word == "resume").split();
  if (!line) return line.error();
  const auto given = Parser().parse(line->options);
  if (!given) return given.error();
  if (has(*given, "help")) return Command(PrintCommand{usage_text()});
  if (has(*given, "version")) return Command(PrintCommand{"hvdlaunch " HVD_VERSION "\n"});
  if (word == "resume") return parse_resume(*line, *given, surroundings);
  return parse_run(*line, *given, surroundings);
}

Result<RunCommand> job_to_ask(const ResumeCommand& command, const Surroundings& surroundings) {
  Asked asked;
  asked.ssh_port = command.asked.ssh_port;
  asked.identity = command.asked.identity;
  asked.transport = command.asked.transport;
  asked.rsh = command.asked.rsh;
  asked.start_timeout = command.asked.start_timeout;
  asked.settings = command.asked.settings;
  return complete(Job(), asked, {*command.where}, {"true"}, surroundings);
}

void relocate(Job& saved, const Host& where, const std::string& hostname) {
  if (saved.launched_on != hostname) return;
  for (Host& host : saved.hosts) {
    if (!host.local) continue;
    host.name = where.name;
    host.address = where.address;
    host.port = where.port;
    host.user = where.user;
    host.local = false;
    host.source = where.source;
  }
  saved.launched_on.clear();
}

Result<RunCommand> resumed_job(Job saved, const ResumeCommand& command,
                               const Surroundings& surroundings) {
  saved.checkpoint_dir = command.dir;
  saved.resume = true;
  auto run = complete(std::move(saved), command.asked, command.hosts, command.argv, surroundings);
  if (!run) return run;
  run->notices.insert(run->notices.begin(), command.notices.begin(), command.notices.end());
  return run;
}

Result<RunCommand> attached_job(Job saved, const Surroundings& surroundings) {
  // It knows its hosts by their numbers: what is discovered now comes behind them.
  std::string discovery = std::exchange(saved.discovery, "");
  auto run = complete(std::move(saved), {}, {}, {}, surroundings);
  if (run) run->job.discovery = std::move(discovery);
  return run;
}

}  // namespace hvd
