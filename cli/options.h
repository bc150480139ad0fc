// The front door: the words of the command line become a Command, a complete and checked value.
// Nothing is started and nobody is asked over the network here; host files are read.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "cli/checkpoints.h"
#include "cli/report_command.h"
#include "cli/settings.h"
#include "launcher/hosts.h"
#include "launcher/launch.h"
#include "supervisor/job.h"
#include "supervisor/placement.h"

namespace hvd {

// What the meaning of a command line depends on besides its words.
struct Surroundings {
  Variables environment;
  std::string directory;  // the current one, absolute; PWD's spelling of it where that is true
  Machine machine;
};
Surroundings surroundings();

// A job, ready to be launched. Its id, secret and job_file are empty still.
struct RunCommand {
  Job job;
  Placement placement;
  LaunchSettings settings;
  bool dry_run = false;
  bool detach = false;
  // Hosts (indices) that must be asked for their slots; until place_ranks is told there is no
  // placement.
  std::vector<uint32_t> unsized;
  Asked asked;
  bool print_env = false;            // argv is `env`: nothing of it is to be resumed
  std::vector<std::string> notices;  // sentences to say before anything starts
};

// `resume`: the job is in `dir`/job.toml or in the launcher's own copy of that. See resumed_job.
struct ResumeCommand {
  std::string dir;            // absolute
  std::optional<Host> where;  // whose folder that is; none: to be seen from here
  Asked asked;                // what replaces the saved job's
  std::vector<Host> hosts;
  std::vector<std::string> argv;  // empty: the saved command
  std::vector<std::string> notices;
  bool as_it_was = false;  // nothing of the saved job is replaced
};

// `stacks`: ask a running job where its ranks wait.
struct StacksCommand {
  std::string job;  // empty: the only one that runs
};

// `attach`: watch a job again whose launcher is gone.
struct AttachCommand {
  std::string job;  // empty: the only one there is
};

// --help and --version: print this to stdout.
struct PrintCommand {
  std::string text;
};

using Command = std::variant<RunCommand, ResumeCommand, CheckpointsCommand, StacksCommand,
                             AttachCommand, ReportCommand, PrintCommand>;

// `words` are those of argv after the program's name. An error is for stderr, with exit code 2.
Result<Command> parse_command(const std::vector<std::string>& words,
                              const Surroundings& surroundings);

// The job to resume: `saved` as parse_job_file gave it, with what the command line replaces.
Result<RunCommand> resumed_job(Job saved, const ResumeCommand& command,
                               const Surroundings& surroundings);

// For a folder of another host: the job of that host alone, by whose agent job.toml is read.
Result<RunCommand> job_to_ask(const ResumeCommand& command, const Surroundings& surroundings);
// What was local to the machine where the job was launched, which is the one that was asked, is
// reached as the user named that.
void relocate(Job& saved, const Host& where, const std::string& hostname);

// A saved job as it was: only what lies in the surroundings is new.
Result<RunCommand> attached_job(Job saved, const Surroundings& surroundings);

// Gives the hosts of `unsized` their slots, by what their agents told in the same order: GPUs, or
// else cores. Then the job has its size and each rank its place.
Status place_ranks(RunCommand& command, const std::vector<AgentHello>& told);

// The placement as a table: rank, host, local rank, command; then the spares.
std::string dry_run_text(const RunCommand& command);

}  // namespace hvd
