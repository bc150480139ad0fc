// What travels between the processes of a job: the contract of the house. Two wires:
//
//   wire 1  launcher <-> agent   the channel's byte stream (SSH, a socketpair, a pipe pair)
//   wire 2  agent <-> worker     a Unix stream socket, its path in HVD_AGENT_SOCKET
//
// Both carry frames (base/frame.h); a frame's body is one byte that says which alternative of the
// wire's variant it is, then that struct (base/codec.h). On wire 1 the agent first prints one line
// that begins with kAgentGreeting, so that a talkative login does no harm: the launcher skips all
// that comes before. Everything about workers carries its attempt; news of another attempt than the
// receiver's is dropped.
//
// Two kinds of traffic on wire 1: control messages always flow; Output flows only against credit
// (bytes per rank and stream) that the launcher granted by StartAttempt and Credit, so that a slow
// reader slows the workers and never the heartbeats.
//
// Times that travel are CLOCK_BOOTTIME nanoseconds of the machine that took them, only ever
// compared with that machine's clock.
//
// A job that survives its launcher (survive_ns) can change the connection that carries wire 1. Both
// sides then count the messages of a session (is_counted), keep those that the other has not heard,
// and send them again on the next connection: nothing is lost or said twice. Output is not counted:
// each stream goes on from the position that TakeOutput names, out of what the agent has kept of
// it. A launcher that takes the job over begins a session of its own, and is told everything anew.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/codec.h"

namespace hvd {

// Changes with any change of the messages below.
inline constexpr uint32_t kProtocol = 8;

// The line an agent prints first on wire 1, followed by the build and a newline.
inline constexpr std::string_view kAgentGreeting = "hvdlaunch-agent-ready ";

using Variables = std::vector<std::pair<std::string, std::string>>;

// Who sent the KILL that ended a rank: the agent itself, the kernel for lack of memory, somebody
// else; or whether it was for memory cannot be told on that host.
enum class Killer : uint8_t { unknown, agent, memory, other, kLast = other };

enum class Stream : uint8_t { out, err, kLast = err };

// Which cores a rank may use: all that its host has for the job, its share of them, or a NUMA node.
enum class Binding : uint8_t { none, core, numa, kLast = numa };

// How far one rank is: the step it last reported by hvd_heartbeat or X_HVD_STEP.
struct RankStep {
  uint32_t rank = 0;
  uint64_t step = 0;
  uint64_t in_calls_ns = 0;  // see ProgressPage
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.rank, m.step, m.in_calls_ns);
  }
};

// What an agent sees of one of its ranks that runs.
struct RankView {
  uint32_t rank = 0;
  uint64_t step = 0;      // last reported
  uint64_t begun = 0;     // collectives of libhvdcomm it has begun
  uint64_t quiet_ns = 0;  // since its last sign of progress
  uint32_t state = 0;     // its main process's letter in /proc/PID/stat, 0: unknown
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.rank, m.step, m.begun, m.quiet_ns, m.state);
  }
};

// One rank's place in an attempt, as the policy decided it.
struct Place {
  uint32_t rank = 0, local_rank = 0, cross_rank = 0, cross_size = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.rank, m.local_rank, m.cross_rank, m.cross_size);
  }
};

// An address that workers of other hosts may reach a host at.
struct HostAddress {
  std::string card;     // "eth0"
  std::string address;  // numeric: "10.0.0.2", "fd00::2"
  uint32_t prefix = 0;  // bits of it that name the network
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.card, m.address, m.prefix);
  }
  friend bool operator==(const HostAddress&, const HostAddress&) = default;
};

// What became of a dial to one address of another host.
enum class DialEnd : uint8_t {
  pending,
  reached,    // that very host's agent answered
  refused,    // nothing listens there
  no_answer,  // within the limit
  stranger,   // something answered that is not that host's agent
  failed,     // an error number says why
  kLast = failed
};

struct DialReport {
  uint32_t host = 0;     // that was dialled
  uint32_t address = 0;  // place in the list that was given for it
  DialEnd end = DialEnd::pending;
  int32_t error = 0;  // errno, with `failed`
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.host, m.address, m.end, m.error);
  }
};

// Where a host's agent listens for proofs of reachability.
struct DialTarget {
  uint32_t host = 0;
  uint32_t port = 0;
  std::vector<std::string> addresses;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.host, m.port, m.addresses);
  }
};

// One rank's shard of a checkpoint, fsynced and not yet committed.
struct Shard {
  uint32_t rank = 0;
  uint64_t length = 0;       // bytes of the file
  std::string digest;        // XXH3-128 of the file, 32 hex digits
  std::string state_digest;  // XXH3-128 of the arrays said to be the same on all ranks, or empty
  bool own_arrays = false;   // also holds arrays that are this rank's own
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.rank, m.length, m.digest, m.state_digest, m.own_arrays);
  }
};

// A rank's state in the memory of its host's agent: a whole shard, as its file would be.
struct KeptState {
  uint32_t attempt = 0;  // whose it is
  uint64_t step = 0;
  Shard shard;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.step, m.shard);
  }
};

// What one agent sees of one step folder.
struct ListedCheckpoint {
  uint64_t step = 0;
  std::string manifest;          // text of manifest.json, empty if it is missing or unreadable
  std::vector<uint32_t> shards;  // ranks whose shard file is there, whatever its content
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.step, m.manifest, m.shards);
  }
};

// A checkpoint of another program's making (supervisor/agent/foreign_layouts.h), beside ours.
struct ListedForeign {
  std::string path;    // below CKPT_DIR: a folder or a file
  std::string layout;  // "PyTorch DCP", "DeepSpeed", ...
  uint64_t step = 0;
  std::string missing;  // what it lacks; empty: it is complete
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.path, m.layout, m.step, m.missing);
  }
};

// Who has a checkpoint folder to itself, as its lock file says.
struct LockRecord {
  std::string job;
  uint32_t attempt = 0;
  std::string host;       // the name the user gave it
  std::string launcher;   // hostname of the machine where the job was started
  uint64_t lease_ns = 0;  // the file is touched more often than this while the holder lives
  // Filled in by the agent that takes the lock.
  std::string boot_id;
  std::string since;  // its host's wall clock, for people
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.job, m.attempt, m.host, m.launcher, m.lease_ns, m.boot_id, m.since);
  }
};

struct ShardDefect {
  uint32_t rank = 0;
  std::string text;  // a sentence that names the file and what is wrong
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.rank, m.text);
  }
};

// ---- wire 1, launcher to agent ----

struct LauncherHello {
  uint32_t protocol = kProtocol;
  std::string job;
  std::string host_name;          // the name the user gave this host
  uint64_t silence_ns = 0;        // --heartbeat-timeout; beat and lease follow from it
  uint64_t failure_grace_ns = 0;  // TERM to KILL when the launcher is gone
  uint64_t survive_ns = 0;        // ranks go on for so long without a launcher; 0: not at all
  uint64_t session = 0;           // random; of one launcher and one agent
  std::string launcher;           // "process 123 on login1", for people
  bool attach = false;            // to an agent that runs, in the same session
  bool take_over = false;         // with attach: in place of whoever had the job before
  uint64_t heard = 0;             // with attach: counted messages of this session
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.protocol, m.job, m.host_name, m.silence_ns, m.failure_grace_ns, m.survive_ns, m.session,
      m.launcher, m.attach, m.take_over, m.heard);
  }
};

// Answers a Beat. The lease holds until this time + 0.6 silence.
struct Echo {
  int64_t agent_time = 0;
  uint64_t heard = 0;  // counted messages of the session
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.agent_time, m.heard);
  }
};

// Where an output stream goes on after an attach: bytes before `from` have arrived. As ever, the
// agent may send the attempt's credit beyond what was `granted`.
struct OutputPosition {
  uint32_t attempt = 0, rank = 0;
  Stream stream = Stream::out;
  uint64_t from = 0, granted = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.stream, m.from, m.granted);
  }
};

// After an attach no output is sent before this. Streams that are not named have all arrived.
struct TakeOutput {
  std::vector<OutputPosition> streams;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.streams);
  }
};

// The hosts of a job prove which of their addresses reach each other before ranks start: each agent
// listens on a port of its own on all its addresses, others dial them. Caller and listener show
// each other a half of the nonce and both hosts' numbers: an address that is also somebody else's,
// or the caller's own, is found out. This one opens the listener; the answer is ProofOpened.
struct OpenProof {
  uint32_t request = 0;
  std::string nonce;  // random, the same for all hosts of the job
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.nonce);
  }
};

// Dials all these at once. Each address's end is told by Dialled, at the latest after the limit.
struct DialPeers {
  uint32_t round = 0;  // comes back in the answers
  std::string nonce;
  uint64_t limit_ns = 0;
  std::vector<DialTarget> targets;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.round, m.nonce, m.limit_ns, m.targets);
  }
};

// Closes the listener and gives up the dials under way.
struct CloseProof {
  template <class M, class V>
  static void visit(M&, V& v) {
    v();
  }
};

// In the place of a path: the state is what the agents have in memory.
inline constexpr const char* kResumeFromMemory = "memory";

struct StartAttempt {
  uint32_t attempt = 0;
  uint32_t size = 0, host_rank = 0, host_count = 0;
  // Where several hosts are one machine: all its ranks, and how many of them come before ours.
  uint32_t machine_size = 0, machine_first = 0;
  uint32_t previous_size = 0;  // ranks of the attempt before, 0 in the first
  uint32_t max_restarts = 0;
  std::vector<Place> places;      // this host's ranks, by local rank
  std::vector<std::string> argv;  // program and arguments
  bool substitute = false;        // {rank} and the like in the arguments are replaced
  std::string workdir;            // empty: where the agent stands
  Binding binding = Binding::none;
  bool split_gpus = false;     // each rank sees its own part of the host's view; else all of it
  uint32_t gpus_per_rank = 0;  // meaningful with split_gpus
  Variables forwarded;         // the launcher's environment, filtered
  Variables set;               // then these, in order: the host's env, then -x
  std::string data_address;    // this host's address for links between workers
  std::string data_card;       // the network card that has it; empty: all ranks are on one machine
  std::string master_address;  // rank 0's
  uint32_t master_port = 0;
  bool free_port = false;  // nobody holds master_port: the program does not share it
  std::string secret;      // proves a worker's link to be of this job
  std::string checkpoint_dir, checkpoint_every;
  std::string resume_from;    // folder, file or kResumeFromMemory; empty: start fresh
  uint64_t resume_step = 0;   // meaningful with resume_from
  uint64_t reached_step = 0;  // highest step any rank reported in earlier attempts
  std::string restart_reason;
  uint64_t credit = 0;  // bytes of Output granted to each rank's streams to begin with
  bool input = false;   // rank `input_rank`'s standard input is what comes by Input
  uint32_t input_rank = 0;
  // A rank that has made progress and then none for so long is stalled; 0: nobody looks.
  uint64_t stall_ns = 0;
  bool stall_asked = false;  // by the user: output is progress too, and WATCHDOG_USEC is set
  // States in this agent's memory that its ranks go on from, each from its own or, if it has none,
  // from the first. The agent forgets all others.
  std::vector<KeptState> kept;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.size, m.host_rank, m.host_count, m.machine_size, m.machine_first,
      m.previous_size, m.max_restarts, m.places, m.argv, m.substitute, m.workdir, m.binding,
      m.split_gpus, m.gpus_per_rank, m.forwarded, m.set, m.data_address, m.data_card,
      m.master_address, m.master_port, m.free_port, m.secret, m.checkpoint_dir, m.checkpoint_every,
      m.resume_from, m.resume_step, m.reached_step, m.restart_reason, m.credit, m.input,
      m.input_rank, m.stall_ns, m.stall_asked, m.kept);
  }
};

// TERM to each main process, KILL to the whole tree after the grace (0: at once). The agent answers
// AttemptStopped when nothing is left. A repeated stop can only shorten the grace.
struct StopAttempt {
  uint32_t attempt = 0;
  uint64_t grace_ns = 0;
  bool failed = false;  // workers in a collective are told that `failed_rank` is gone
  uint32_t failed_rank = 0;
  std::string reason;
  bool kill_failed = false;  // the failed rank gets KILL at once: it would not hear TERM
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.grace_ns, m.failed, m.failed_rank, m.reason, m.kill_failed);
  }
};

struct Credit {
  uint32_t attempt = 0, rank = 0;
  Stream stream = Stream::out;
  uint64_t bytes = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.stream, m.bytes);
  }
};

// Bytes for the standard input of a rank; with `last` its end follows them. At most kInputWindow
// bytes are under way: the agent's InputCredit says how many the rank took.
inline constexpr uint64_t kInputWindow = 256 << 10;
struct Input {
  uint32_t attempt = 0, rank = 0;
  bool last = false;
  std::string bytes;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.last, m.bytes);
  }
};

// Round `round` of the exchange is complete: every rank's blob, by rank.
struct ExchangeResult {
  uint32_t attempt = 0, round = 0;
  std::vector<std::string> blobs;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.round, m.blobs);
  }
};

// The save of `step` was committed, or refused with a reason.
struct SaveResult {
  uint32_t attempt = 0;
  uint64_t step = 0;
  std::string error;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.step, m.error);
  }
};

// The state of `step` is in memory for all ranks, or it is not, with a reason.
struct KeepResult {
  uint32_t attempt = 0;
  uint64_t step = 0;
  std::string error;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.step, m.error);
  }
};

// All ranks loaded the same state (error empty), or they did not.
struct LoadResult {
  uint32_t attempt = 0;
  std::string error;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.error);
  }
};

// Makes the checkpoint folder if `write` and then the file `nonce` in it; otherwise says whether
// `nonce` is there. With `remove` the nonce goes.
struct ProbeDirectory {
  uint32_t request = 0;
  std::string dir, nonce;
  bool write = false, remove = false;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.dir, m.nonce, m.write, m.remove);
  }
};

// Makes CKPT_DIR/.hvdlaunch.lock say that the folder is this job's, until the agent ends. The lock
// of an earlier attempt of the same job, and of a holder that is proven dead, is taken over.
struct TakeLock {
  uint32_t request = 0;
  std::string dir;
  LockRecord record;
  uint64_t stale_ns = 0;  // a lock last touched at this time of the folder's clock is dead; 0: none
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.dir, m.record, m.stale_ns);
  }
};

struct ListCheckpoints {
  uint32_t request = 0;
  std::string dir;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.dir);
  }
};

// Reads the named ranks' shards whole and compares them with the manifest.
struct VerifyCheckpoint {
  uint32_t request = 0;
  std::string dir;
  uint64_t step = 0;
  std::vector<uint32_t> shards;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.dir, m.step, m.shards);
  }
};

// Writes the manifest into step-N.tmp-ATTEMPT, renames the folder, fsyncs its parent.
struct CommitCheckpoint {
  uint32_t request = 0;
  std::string dir;
  uint32_t attempt = 0;
  uint64_t step = 0;
  std::string manifest;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.dir, m.attempt, m.step, m.manifest);
  }
};

// Removes these committed steps, and the unfinished saves of attempts before `attempt`.
struct PruneCheckpoints {
  uint32_t request = 0;
  std::string dir;
  uint32_t attempt = 0;
  std::vector<uint64_t> steps;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.dir, m.attempt, m.steps);
  }
};

// Writes CKPT_DIR/job.toml, mode 0600.
struct WriteJobFile {
  uint32_t request = 0;
  std::string dir, text;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.dir, m.text);
  }
};

// What does CKPT_DIR/job.toml say, that another launcher wrote? Answered by JobFileRead.
struct ReadJobFile {
  uint32_t request = 0;
  std::string dir;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.dir);
  }
};

// What do the ranks of this host do? Answered by RanksSeen.
struct LookAtRanks {
  uint32_t attempt = 0, look = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.look);
  }
};

// Where do the processes of the ranks of this host wait? Answered by StacksTaken, a little after
// the limit at the latest. With less than a second there is no time for debuggers.
struct TakeStacks {
  uint32_t attempt = 0, request = 0;
  uint64_t limit_ns = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.request, m.limit_ns);
  }
};

// The user stops the launcher for a while (Ctrl-Z): the agent stops all processes of its ranks,
// holds its lease and answers Suspended.
struct Suspend {
  template <class M, class V>
  static void visit(M&, V& v) {
    v();
  }
};

// The launcher goes on, and so do the ranks; the lease counts again.
struct Resume {
  template <class M, class V>
  static void visit(M&, V& v) {
    v();
  }
};

// The job is over: stop what still runs and end.
struct Goodbye {
  uint64_t grace_ns = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.grace_ns);
  }
};

using ToAgent =
    std::variant<LauncherHello, Echo, OpenProof, DialPeers, CloseProof, StartAttempt, StopAttempt,
                 Credit, ExchangeResult, SaveResult, LoadResult, ProbeDirectory, ListCheckpoints,
                 VerifyCheckpoint, CommitCheckpoint, PruneCheckpoints, WriteJobFile, Suspend,
                 Resume, Goodbye, Input, LookAtRanks, TakeLock, TakeStacks, KeepResult, ReadJobFile,
                 TakeOutput>;

// ---- wire 1, agent to launcher ----

struct AgentHello {
  uint32_t protocol = kProtocol;
  std::string hostname, boot_id;
  uint64_t network = 0;  // inode of its network namespace
  uint32_t cores = 0;
  uint32_t gpus = 0;           // that a login of this host sees
  uint32_t reserved_port = 0;  // bound for the next attempt's MASTER_PORT, fresh per attempt
  std::string refusal;         // why this launcher may not attach, a sentence
  bool absent = false;         // no agent of the job runs here, nor anything else of it
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.protocol, m.hostname, m.boot_id, m.network, m.cores, m.gpus, m.reserved_port, m.refusal,
      m.absent);
  }
};

struct Beat {
  int64_t agent_time = 0;
  uint32_t attempt = 0;
  std::vector<RankStep> steps;  // those that changed since the last beat
  uint64_t heard = 0;           // counted messages of the session
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.agent_time, m.attempt, m.steps, m.heard);
  }
};

// What the agent has of its newest attempt.
enum class HeldState : uint8_t { none, running, stopping, gone, kLast = gone };

// Follows the hello of an agent that was attached to. To a launcher that takes over, all news of
// the attempt that are still of use follow, as if they were new.
struct Held {
  uint64_t heard = 0;  // counted messages of this session
  HeldState state = HeldState::none;
  StartAttempt start;  // of the newest attempt, unless there is none
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.heard, m.state, m.start);
  }
};

// The listener of an OpenProof is there, or could not be opened. Addresses that no other host can
// use (loopback, link-local) are left out.
struct ProofOpened {
  uint32_t request = 0;
  uint32_t port = 0;
  std::vector<HostAddress> addresses;
  std::string error;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.port, m.addresses, m.error);
  }
};

// Some of the dials of a DialPeers have ended.
struct Dialled {
  uint32_t round = 0;
  std::vector<DialReport> results;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.round, m.results);
  }
};

struct WorkerStarted {
  uint32_t attempt = 0, rank = 0;
  int32_t pid = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.pid);
  }
};

// A rank has made no progress for the stall limit.
struct RankStalled {
  uint32_t attempt = 0, rank = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank);
  }
};

// A stalled rank made progress again.
struct RankMoved {
  uint32_t attempt = 0, rank = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank);
  }
};

// Answers LookAtRanks.
struct RanksSeen {
  uint32_t attempt = 0, look = 0;
  std::vector<RankView> ranks;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.look, m.ranks);
  }
};

// Text for people.
struct RankStack {
  uint32_t rank = 0;
  std::string text;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.rank, m.text);
  }
};

// Answers TakeStacks.
struct StacksTaken {
  uint32_t attempt = 0, request = 0;
  std::vector<RankStack> ranks;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.request, m.ranks);
  }
};

// The main process of a rank ended, or could not be started.
struct WorkerEnded {
  uint32_t attempt = 0, rank = 0;
  int32_t exit_code = 0;            // meaningful when signal is 0
  int32_t signal = 0;               // 0 if it exited by itself
  Killer killer = Killer::unknown;  // meaningful when signal is KILL
  std::string not_started;  // why the program could not run, else empty (exit_code is 126 or 127)
  bool left_early = false;  // used libhvdcomm and exited 0 without hvd_finalize
  std::string last_lines;   // the end of its stderr, at most 2 KiB
  std::vector<RankStep> steps;  // last known of all ranks of this host
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.exit_code, m.signal, m.killer, m.not_started, m.left_early, m.last_lines,
      m.steps);
  }
};

// No process of the attempt is left on this host. Output that no credit was left for follows.
struct AttemptStopped {
  uint32_t attempt = 0;
  uint32_t reserved_port = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.reserved_port);
  }
};

// Answers Suspend: the ranks stand still.
struct Suspended {
  template <class M, class V>
  static void visit(M&, V& v) {
    v();
  }
};

// `bytes` stay the last member: kOutputHead.
struct Output {
  uint32_t attempt = 0, rank = 0;
  Stream stream = Stream::out;
  std::string bytes;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.stream, m.bytes);
  }
};

struct OutputEnd {
  uint32_t attempt = 0, rank = 0;
  Stream stream = Stream::out;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.stream);
  }
  friend bool operator==(const OutputEnd&, const OutputEnd&) = default;
};

struct InputCredit {
  uint32_t attempt = 0, rank = 0;
  uint64_t bytes = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.bytes);
  }
};

struct ExchangeBlob {
  uint32_t attempt = 0, rank = 0, round = 0;
  std::string blob;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.round, m.blob);
  }
};

// A rank's shard of `step` is on disk, or could not be written.
struct ShardSaved {
  uint32_t attempt = 0;
  uint64_t step = 0;
  Shard shard;
  std::string note;   // the program's own words for the manifest: data position, random state
  std::string error;  // empty: saved
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.step, m.shard, m.note, m.error);
  }
};

// A rank's shard of `step` is in memory that its agent holds, a descriptor of which travels with
// the message over wire 2; or there is no room for it.
struct ShardKept {
  uint32_t attempt = 0;
  uint64_t step = 0;
  Shard shard;
  std::string error;  // empty: kept
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.step, m.shard, m.error);
  }
};

// A rank loaded its state, whose part that is the same on all ranks has this digest.
struct StateLoaded {
  uint32_t attempt = 0, rank = 0;
  uint64_t step = 0;
  std::string state_digest;
  std::string error;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.step, m.state_digest, m.error);
  }
};

// A program's own checkpoint is complete (X_HVD_CHECKPOINT).
struct ForeignCheckpoint {
  uint32_t attempt = 0, rank = 0;
  uint64_t step = 0;
  std::string path;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.step, m.path);
  }
};

// A rank called hvd_abort: it ends with `code`, and its reason is the job's.
struct WorkerAborted {
  uint32_t attempt = 0, rank = 0;
  int32_t code = 0;
  std::string reason;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.code, m.reason);
  }
};

struct DirectoryProbed {
  uint32_t request = 0;
  bool seen = false;
  std::string error;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.seen, m.error);
  }
};

struct CheckpointsListed {
  uint32_t request = 0;
  std::vector<ListedCheckpoint> found;
  uint32_t last_draft = 0;  // highest attempt of an unfinished save, 0 if there is none
  std::vector<ListedForeign> foreign;
  std::string error;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.found, m.last_draft, m.foreign, m.error);
  }
};

struct LockTaken {
  uint32_t request = 0;
  bool taken = false;
  // When it is not, and there is no error: who has it.
  bool alive = false;       // proven; else only a file that is touched no more tells of its end
  uint64_t touched_ns = 0;  // last, by the folder's clock
  LockRecord holder;
  std::string error;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.taken, m.alive, m.touched_ns, m.holder, m.error);
  }
};

struct CheckpointVerified {
  uint32_t request = 0;
  uint64_t step = 0;
  std::vector<uint32_t> whole;
  std::vector<ShardDefect> defects;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.step, m.whole, m.defects);
  }
};

// A CommitCheckpoint, PruneCheckpoints or WriteJobFile was performed, or not.
struct Performed {
  uint32_t request = 0;
  std::string error;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.error);
  }
};

// Answers ReadJobFile; neither text nor error: there is none.
struct JobFileRead {
  uint32_t request = 0;
  std::string text;
  std::string error;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.request, m.text, m.error);
  }
};

// Something the user should read, about this host.
struct AgentNotice {
  std::string text;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.text);
  }
};

// Whoever runs this host means to end it soon: TERM came to the agent, from a scheduler, a service
// manager or a person. The agent and its ranks go on until the launcher has decided.
struct Leaving {
  std::string reason;  // after "is preempted: "
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.reason);
  }
};

using FromAgent =
    std::variant<AgentHello, Beat, ProofOpened, Dialled, WorkerStarted, WorkerEnded, AttemptStopped,
                 Output, OutputEnd, ExchangeBlob, ShardSaved, StateLoaded, ForeignCheckpoint,
                 WorkerAborted, DirectoryProbed, CheckpointsListed, CheckpointVerified, Performed,
                 Suspended, AgentNotice, InputCredit, RankStalled, RankMoved, RanksSeen, Leaving,
                 LockTaken, StacksTaken, ShardKept, JobFileRead, Held>;

// ---- wire 2, worker to agent ----

// First message of a connection. One descriptor travels with it (SCM_RIGHTS): a memfd of
// sizeof(ProgressPage) bytes that the worker counts in and the agent reads.
struct Join {
  uint32_t protocol = kProtocol;
  uint32_t attempt = 0, rank = 0;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.protocol, m.attempt, m.rank);
  }
};

// The worker's collectives are over; an exit with 0 from now on is a clean end.
struct Finalized {
  template <class M, class V>
  static void visit(M&, V& v) {
    v();
  }
};

using FromWorker =
    std::variant<Join, ExchangeBlob, ShardSaved, StateLoaded, WorkerAborted, Finalized, ShardKept>;

// ---- wire 2, agent to worker ----

struct Welcome {
  uint32_t attempt = 0, rank = 0, size = 0, local_rank = 0, local_size = 0;
  std::string data_address, secret;
  // The state to go on from, if it is in memory: one, whose memory travels along as a descriptor.
  std::vector<KeptState> kept;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.size, m.local_rank, m.local_size, m.data_address, m.secret, m.kept);
  }
};

// Rank `rank` is gone: collectives end with an error that names it.
struct PeerFailed {
  uint32_t attempt = 0, rank = 0;
  std::string reason;
  template <class M, class V>
  static void visit(M& m, V& v) {
    v(m.attempt, m.rank, m.reason);
  }
};

using ToWorker =
    std::variant<Welcome, ExchangeResult, SaveResult, LoadResult, PeerFailed, KeepResult>;

// What a worker counts, in memory shared with its agent: no system call per heartbeat. Both sides
// use relaxed 64-bit atomics.
struct ProgressPage {
  uint64_t step = 0;         // last step given to hvd_heartbeat
  uint64_t heartbeats = 0;   // calls of hvd_heartbeat
  uint64_t collectives = 0;  // collectives completed
  uint64_t begun = 0;        // collectives begun
  uint64_t storage = 0;      // 1 while a checkpoint is saved or loaded
  uint64_t in_calls_ns = 0;  // spent in collectives, saves and loads that are over
};

// One message as a whole frame, ready for the wire.
std::string to_frame(const ToAgent& message);
std::string to_frame(const FromAgent& message);
std::string to_frame(const FromWorker& message);
std::string to_frame(const ToWorker& message);

// Whether a message of wire 1 is one that a session counts, and sends again when it was not heard.
bool is_counted(const ToAgent& message);
bool is_counted(const FromAgent& message);

// The frame of an Output, up to its bytes, which whoever has them at hand puts right behind: what
// a stream says is not copied to be sent.
inline constexpr size_t kOutputHead = 18;
std::string output_head(const OutputEnd& of, size_t bytes);

// A frame's body as a message, or none if it is not one, whole and exact.
std::optional<ToAgent> parse_to_agent(std::string_view body);
std::optional<FromAgent> parse_from_agent(std::string_view body);
std::optional<FromWorker> parse_from_worker(std::string_view body);
std::optional<ToWorker> parse_to_worker(std::string_view body);

}  // namespace hvd
