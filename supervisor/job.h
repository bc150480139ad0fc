// The job, a constant value: everything the user asked for, after command line, [job] table and
// defaults were put together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/message.h"
#include "base/time.h"
#include "supervisor/host.h"
#include "supervisor/rules.h"

namespace hvd {

// What carries the conversation with the agents.
enum class Transport {
  automatic,  // whatever reaches a host best
  libssh,     // the SSH that is built in
  openssh,    // the program ssh
  slurm,      // srun, inside an allocation
  local,      // every host is this machine
};

// What is done about ranks that run and make no progress.
enum class StallAction { warn, restart };

// For so long at most ranks of a job that survives its launcher go on unheard: see the lease's
// arithmetic (supervisor/agent/lease.h), which is over a little before.
inline Duration longest_alone(Duration survive, Duration grace, Duration silence) {
  return std::max<Duration>(survive, silence * 6 / 10) + grace + silence;
}

struct Job {
  std::string id;      // letters, digits and '-'
  std::string secret;  // random, proves a link between workers to be of this job
  std::string nonce;   // random, proves hosts to each other before ranks start
  std::vector<std::string> argv;
  std::string workdir;
  Variables forwarded;                   // the launcher's environment, filtered
  bool substitute = false;               // {rank} and the like in the arguments are replaced
  Variables set;                         // -x, in order, each name once
  std::vector<std::string> set_by_name;  // those of `set` whose value came from the environment
  std::vector<Host> hosts;
  uint32_t size = 0;                      // ranks
  bool oversubscribe = false;             // ranks may share slots and GPUs
  std::optional<uint32_t> gpus_per_rank;  // absent: every rank sees all GPUs of its host
  Binding binding = Binding::none;
  Transport transport = Transport::automatic;
  std::vector<std::string> rsh;  // --rsh as words, places not filled; empty: none
  std::string allocation;        // the job of Slurm by whose srun hosts are reached; empty: none
  std::string launched_on;       // hostname of the machine where the user typed the command

  std::string discovery;        // command that prints the hosts again and again; empty: none
  uint16_t ssh_port = 0;        // of hosts that it prints without; 0: the transport's own
  std::string identity;         // private key file for them, empty: the transport's own
  uint32_t slots_per_host = 0;  // of theirs; 0: as printed

  std::optional<uint32_t> input_rank;  // whose standard input ours is; nobody's without

  Duration start_timeout = std::chrono::seconds(60);
  Duration silence = std::chrono::seconds(10);
  Duration grace = std::chrono::seconds(30);
  Duration failure_grace = std::chrono::seconds(3);
  Duration survive{};                                 // ranks go on without a launcher; zero: not
  std::optional<Duration> wall_time;                  // of each run, from its start
  Duration stall_timeout = std::chrono::seconds(60);  // zero: ranks are not watched
  bool stall_asked = false;                           // by the user, for that limit
  StallAction stall_action = StallAction::warn;

  std::string checkpoint_dir;    // absolute, empty: none
  std::string checkpoint_every;  // handed to the program
  uint32_t checkpoint_keep = 3;

  std::optional<uint32_t> max_restarts;  // as the user said
  uint32_t max_host_failures = 5;        // 0: whatever hosts do, they are used
  std::vector<Rule> rules;               // about failures, the first that fits counts
  std::string job_file;                  // text of CKPT_DIR/job.toml; empty: not to be resumed
  bool resume = false;                   // must find a checkpoint
  std::string resume_foreign;            // a program's own checkpoint known from an earlier run
  uint64_t resume_foreign_step = 0;
  uint64_t reached_step = 0;  // highest step an earlier run reported
};

}  // namespace hvd
