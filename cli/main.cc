// hvdlaunch: the front door. Reads the command line, makes the job whole, and hands it on.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/exit_codes.h"
#include "base/fd.h"
#include "base/gpu_view.h"
#include "base/machine.h"
#include "cli/options.h"
#include "launcher/control_socket.h"
#include "launcher/detach.h"
#include "launcher/job_file.h"
#include "launcher/journal.h"
#include "launcher/launch.h"
#include "launcher/log_folder.h"
#include "launcher/state_folder.h"
#include "launcher/survey.h"
#include "launcher/terminal_text.h"
#include "supervisor/agent/agent.h"
#include "supervisor/machines.h"

namespace hvd {

namespace {

int fail(const std::string& text, int code) {
  std::fputs(terminal_lines("hvdlaunch: ", text).c_str(), stderr);
  return code;
}

// All of it on standard output, or a failure. A reader that is gone wants no more.
int print(const std::string& text) {
  const Status written = write_all(STDOUT_FILENO, text);
  const int number = errno;
  if (written || number == EPIPE) return 0;
  return fail(std::string("standard output cannot be written: ") + std::strerror(number),
              kExitOwnFailure);
}

// The file for what a detached job writes: in the log folder, or with the job's history.
Result<std::string> output_file(const RunCommand& command, StateFolder& state) {
  const std::string& logs = command.settings.log_dir;
  const Status made =
      logs.empty() ? state.make_job_folder(command.job.id) : make_folders(logs, 0777);
  if (!made) return made.error();
  const std::string path =
      logs.empty() ? state.job_file(command.job.id, "output") : logs + "/output";
  if (path.empty()) return Error{"--detach: there is no home for the output: name a --log-dir"};
  return path;
}

int launch_detached(const RunCommand& command) {
  StateFolder state;
  const Result<std::string> output = output_file(command, state);
  if (!output) return fail(output.error().text, kExitUsage);
  return run_detached(
      *output,
      [&](int pid) {
        return "job " + command.job.id + " runs in the background as process " +
               std::to_string(pid) + "; its output goes to " + *output + "; to stop it: kill " +
               std::to_string(pid);
      },
      [&](const std::function<void()>& started) {
        return launch(command.job, command.placement, command.settings, started);
      });
}

// The plan, and what would keep the run from starting as far as it is known without asking.
int dry_run(const RunCommand& command, std::vector<KnownMachine> known) {
  AgentHello own;
  own.gpus = visible_gpus(count_gpus());
  for (uint32_t host = 0; host < command.job.hosts.size(); ++host) {
    if (command.job.hosts[host].local) known.push_back({host, own});
  }
  if (const int code = print(dry_run_text(command)); code != 0) return code;
  const std::string shortages = gpu_shortages(command.job, known, command.placement);
  return shortages.empty() ? 0 : fail(shortages, kExitUsage);
}

int run(RunCommand command) {
  for (const std::string& notice : command.notices) {
    if (command.settings.verbosity >= 0) fail(notice, 0);
  }
  command.job.id = new_job_id();
  std::vector<KnownMachine> known;
  if (!command.unsized.empty()) {
    const auto told = survey(command.job, command.unsized, command.settings.accept_new_host_keys);
    if (!told) return fail(told.error().text, kExitNoHosts);
    for (size_t i = 0; i < told->size(); ++i) known.push_back({command.unsized[i], (*told)[i]});
    if (const Status placed = place_ranks(command, *told); !placed) {
      return fail(placed.error().text, kExitUsage);
    }
  }
  if (command.dry_run) return dry_run(command, std::move(known));
  if (!command.settings.log_dir.empty()) {
    const Result<uint32_t> before = claim_log_folder(command.settings.log_dir);
    if (!before) return fail(before.error().text, kExitUsage);
    command.settings.logged_before = *before;
  }
  command.job.secret = new_secret();
  command.job.nonce = new_secret();
  if (!command.print_env) command.job.job_file = job_file_text(command.job, HVD_VERSION);
  if (command.detach) return launch_detached(command);
  return launch(command.job, command.placement, command.settings);
}

// job.toml of the directory itself if it can be seen from here, else this machine's own copy.
Result<std::string> find_job_file(const std::string& dir, const StateFolder& state,
                                  std::string& path) {
  path = dir + "/job.toml";
  Result<std::string> text = read_own_file(path, kLongestJobFile);
  if (text || access(path.c_str(), F_OK) == 0) return text;
  path = state.resume_file(dir, "job.toml");
  Result<std::string> copy = read_own_file(path, kLongestJobFile);
  if (copy) return copy;
  return Error{"nothing to resume: there is no " + dir +
               "/job.toml, and no job was started from this machine with --checkpoint-dir " + dir};
}

// Watches a job of whose launcher only the journal is left. None if it is over and that may be.
std::optional<int> attach_to(const std::string& name, const StateFolder& state, bool may_be_over,
                             const Surroundings& surroundings) {
  Result<Journal> journal = read_journal(state, name);
  if (!journal) return fail(journal.error().text, kExitUsage);
  Result<Job> saved = parse_job_file(journal->job_file, "the journal of job " + name);
  if (!saved) return fail(saved.error().text, kExitUsage);
  Result<Fd> lock = lock_job(state, name);
  if (!lock) return fail(lock.error().text, kExitUsage);
  Result<RunCommand> command = attached_job(std::move(*saved), surroundings);
  if (!command) return fail(command.error().text, kExitUsage);
  Job& job = command->job;
  job.id = name;
  job.secret = new_secret();
  job.nonce = new_secret();
  job.allocation = journal->allocation;
  job.resume = journal->memory.resumed;
  if (journal->resumable) job.job_file = journal->job_file;
  Predecessor before;
  before.memory = journal->memory;
  before.elapsed = std::chrono::seconds(std::max<int64_t>(std::time(nullptr) - journal->began, 0));
  before.may_be_over = may_be_over;
  return take_over(job, command->placement, journal->settings, before, std::move(*lock));
}

int attach(const AttachCommand& command, const Surroundings& surroundings) {
  const StateFolder state;
  const std::vector<std::string> jobs = surviving_jobs(state);
  std::string job = command.job;
  if (job.empty() && jobs.size() == 1) job = jobs[0];
  if (job.empty()) {
    std::string names;
    for (const std::string& one : jobs) names += " " + one;
    return fail(jobs.empty() ? "there is no job to attach to: none was started from this machine "
                               "with --survive, or all are over"
                             : "there are several jobs, name one of them:" + names,
                kExitUsage);
  }
  if (std::find(jobs.begin(), jobs.end(), job) == jobs.end()) {
    return fail("there is no job " + job +
                    " to attach to: it was not started from this machine with --survive, or it "
                    "is over",
                kExitUsage);
  }
  return *attach_to(job, state, false, surroundings);
}

// A job of the same directory may have survived its launcher: then it is watched again.
std::optional<int> attach_to_living(const ResumeCommand& command, const StateFolder& state,
                                    const Surroundings& surroundings) {
  for (const std::string& name : surviving_jobs(state)) {
    const Result<Journal> journal = read_journal(state, name);
    const Result<Job> saved = journal ? parse_job_file(journal->job_file, name) : journal.error();
    if (!saved || saved->checkpoint_dir != command.dir) continue;
    const std::optional<int> code = attach_to(name, state, true, surroundings);
    if (code) return code;
  }
  return std::nullopt;
}

// Of a folder on another host, by its agent. An exit code in the place of a job: why was told.
std::variant<Job, int> find_far_job(const ResumeCommand& command,
                                    const Surroundings& surroundings) {
  Result<RunCommand> ask = job_to_ask(command, surroundings);
  if (!ask) return fail(ask.error().text, kExitUsage);
  ask->job.id = new_job_id();
  const std::string where = command.where->name + ":" + command.dir + "/job.toml";
  const auto far = read_far_job_file(ask->job, command.dir, ask->settings.accept_new_host_keys);
  if (!far) return fail(far.error().text, kExitNoHosts);
  if (!far->error.empty()) return fail(command.where->name + ": " + far->error, kExitUsage);
  if (far->text.empty()) {
    return fail("nothing to resume: there is no " + where, kExitNothingToResume);
  }
  Result<Job> saved = parse_job_file(far->text, where);
  if (!saved) return fail(saved.error().text, kExitUsage);
  relocate(*saved, *command.where, far->hostname);
  return std::move(*saved);
}

// Of a folder that can be seen from here, or that a job was started with here.
std::variant<Job, int> find_job(const ResumeCommand& command, const StateFolder& state) {
  std::string path;
  const Result<std::string> text = find_job_file(command.dir, state, path);
  // A file that is there and must not be trusted is a mistake to mend, not the lack of a job.
  if (!text) {
    return fail(text.error().text,
                access(path.c_str(), F_OK) == 0 ? kExitUsage : kExitNothingToResume);
  }
  Result<Job> saved = parse_job_file(*text, path);
  if (!saved) return fail(saved.error().text, kExitUsage);
  return std::move(*saved);
}

int resume(const ResumeCommand& command, const Surroundings& surroundings) {
  const StateFolder state;
  if (command.as_it_was && !command.where) {
    if (const auto code = attach_to_living(command, state, surroundings)) return *code;
  }
  std::variant<Job, int> saved =
      command.where ? find_far_job(command, surroundings) : find_job(command, state);
  if (const int* code = std::get_if<int>(&saved)) return *code;
  Result<RunCommand> job = resumed_job(std::move(std::get<Job>(saved)), command, surroundings);
  if (!job) return fail(job.error().text, kExitUsage);
  job->job.resume = true;
  RunProgress progress;
  if (!command.where) progress = read_progress(state.resume_file(command.dir, "progress.json"));
  job->job.reached_step = progress.reached_step;
  job->job.resume_foreign = progress.foreign_path;
  job->job.resume_foreign_step = progress.foreign_step;
  std::string words;
  for (const std::string& word : job->job.argv) words += " " + word;
  if (job->settings.verbosity >= 0) fail("resuming:" + words, 0);
  return run(std::move(*job));
}

int report(const ReportCommand& command) {
  const ReportShown shown = show_report(command);
  if (!shown.error.empty()) return fail(shown.error, shown.code);
  return print(shown.text);
}

int checkpoints(const CheckpointsCommand& command) {
  const CheckpointsShown shown = show_checkpoints(command);
  if (!shown.error.empty()) fail(shown.error, 0);
  const int code = print(shown.text);
  return code != 0 ? code : shown.code;
}

int stacks(const StacksCommand& command) {
  constexpr int kPatience = 15;
  std::string job = command.job;
  if (job.empty()) {
    const std::vector<std::string> jobs = running_jobs();
    if (jobs.size() != 1) {
      std::string names;
      for (const std::string& one : jobs) names += " " + one;
      return fail(jobs.empty() ? "no launcher of a job runs on this machine"
                               : "several jobs run here, name one of them:" + names,
                  kExitUsage);
    }
    job = jobs[0];
  }
  const Result<std::string> answer = ask_job(job, "stacks", kPatience);
  return answer ? print(terminal_lines("", *answer)) : fail(answer.error().text, kExitUsage);
}

// What only a bug or a lack of memory brings about. Agents see the connection end, and clean up.
void end_by_own_failure(int) {
  constexpr char kText[] = "hvdlaunch: exit code 125, from hvdlaunch\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(kExitOwnFailure);
}

// What is opened later must not become 0, 1 or 2 where those were closed: our own text and the
// ranks' would go there. What is written to a closed one is lost, which stays an error.
void hold_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) static_cast<void>(open("/dev/null", O_RDONLY));
  }
}

int run_command(const std::vector<std::string>& words) {
  std::signal(SIGABRT, end_by_own_failure);
  // A reader or a program that goes is an error where it is written to.
  std::signal(SIGPIPE, SIG_IGN);
  const Surroundings around = surroundings();
  Result<Command> command = parse_command(words, around);
  if (!command) return fail(command.error().text, kExitUsage);
  if (auto* c = std::get_if<RunCommand>(&*command)) return run(std::move(*c));
  if (auto* c = std::get_if<ResumeCommand>(&*command)) return resume(*c, around);
  if (auto* c = std::get_if<ReportCommand>(&*command)) return report(*c);
  if (auto* c = std::get_if<CheckpointsCommand>(&*command)) return checkpoints(*c);
  if (auto* c = std::get_if<StacksCommand>(&*command)) return stacks(*c);
  if (auto* c = std::get_if<AttachCommand>(&*command)) return attach(*c, around);
  return print(std::get<PrintCommand>(*command).text);
}

}  // namespace

}  // namespace hvd

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  hvd::hold_standard_descriptors();
  // The per-host process has no use for what a command line depends on.
  if (!words.empty() && words[0] == "agent") {
    // It may have been started by the number of a descriptor.
    prctl(PR_SET_NAME, "hvdlaunch");
    words.erase(words.begin());
    return hvd::agent_main(words);
  }
  return hvd::run_command(words);
}
