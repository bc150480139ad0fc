// The failure policy: everything that is decided during a job. Pure: events and the time go in,
// actions come out; no I/O, no clock, no globals. The loop (launcher/launch) performs the actions.
//
// One attempt is one life of all ranks. The phases, and what moves between them:
//
//   gathering   hosts that hold ranks are being connected. All up -> proving. One refused or lost
//               -> a spare takes its ranks, or it is tried again until the start deadline, or the
//               job ends (69 in the first attempt, 70 later). In later attempts one that
//               is not up after a few seconds gives way to a spare that is.
//   proving     with ranks on more than one machine: agents dial the addresses of other hosts
//               (supervisor/addresses.h). A proven address for every host -> preparing. None for
//               one -> the job ends (69) in the first attempt; later a spare takes the ranks of one
//               that does not reach others, or all is proven again until the start deadline. One
//               lost -> gathering. What was proven holds for later attempts until a host is lost:
//               then its own pairs are proven anew; or until ranks stall or make no progress: then
//               all are.
//   preparing   with a checkpoint folder: probe who sees it, lock it (whether another job's lock is
//               touched is watched for a lease; if it is, the job ends), list what is there, verify
//               the newest candidate; a bad one is skipped by name and the one before is verified.
//               Then every agent is sent StartAttempt -> running. All this is passed over where the
//               same agents committed or read the newest one before: it is verified behind the
//               start. So it is where the agents have a newer state of all ranks in memory
//               (policy_kept.cc).
//   running     ranks work. The last rank ended with 0 -> stopping without a cause. The first
//               abnormal end of a rank, a host's end, a stall that is to be acted on, the user's
//               request or the wall time -> stopping with that cause; what follows is a
//               consequence.
//   stopping    agents were told to stop the attempt. All answered AttemptStopped or are gone ->
//               the job goes on (-> backing_off) or ends (-> done). An agent that does not answer
//               within grace and margin is dropped. For hosts that leave, see policy_preempt.cc.
//   backing_off a pause before the next attempt, none before the first relaunch -> gathering.
//   taking_over in place of gathering, where an earlier launcher's agents run: see
//               policy_adoption.cc. -> running, stopping, gathering or done.
//   done        Finish was given; every event is ignored.
//
// Events that carry another attempt than the current one are old news and dropped. A host's end is
// handled in every phase. Requests to agents are numbered; an answer to no open request is dropped.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/message.h"
#include "base/time.h"
#include "supervisor/addresses.h"
#include "supervisor/checkpoints.h"
#include "supervisor/host_ledger.h"
#include "supervisor/job.h"
#include "supervisor/job_memory.h"
#include "supervisor/placement.h"
#include "supervisor/restart_budget.h"
#include "supervisor/stalls.h"
#include "supervisor/stragglers.h"
#include "supervisor/time_account.h"

namespace hvd {

// ---- events ----

// A host's agent answered: it can be given ranks.
struct HostUp {
  uint32_t host = 0;
  AgentHello hello;
  std::string address;                      // where the launcher reached it; empty: this machine
  std::string own_address;                  // the launcher's own on that connection
  std::optional<Held> held = std::nullopt;  // by an agent that was taken over
};

enum class HostEnd {
  refused,  // never came up
  ended,    // its agent ended, over a living connection: nothing of the job is left there
  lost,     // the connection broke
  silent,   // not heard for the silence limit
  taken,    // another launcher has the job
};

struct HostDown {
  uint32_t host = 0;
  HostEnd end = HostEnd::refused;
  std::string reason;  // a sentence that names the host
};

struct AgentSaid {
  uint32_t host = 0;
  FromAgent message;
};

// INT, TERM, HUP or USR1 at the launcher.
struct StopRequested {
  int signal = 0;
};

// Standard output takes nothing any more, though its reader is there: a full disk.
struct OutputFailed {
  std::string reason;  // a sentence, which the user knows
};

// The list of hosts is another one: the job may have more than the policy knew of.
struct HostsListed {
  std::vector<uint32_t> come, gone;
};

// Only time has passed.
struct Tick {};

using Event =
    std::variant<HostUp, HostDown, AgentSaid, StopRequested, OutputFailed, HostsListed, Tick>;

// ---- actions ----

// Opens a channel to the host and starts its agent. Answered by HostUp or HostDown.
struct Connect {
  uint32_t host = 0;
  bool needed = true;      // else it is a spare that was lost, and nobody waits for it
  bool take_over = false;  // the agent of an earlier launcher, which runs there
};

// Closes the channel at once.
struct Drop {
  uint32_t host = 0;
};

struct Send {
  uint32_t host = 0;
  ToAgent message;
};

// A failure of the host's own, to be remembered by later runs.
struct HostFailed {
  uint32_t host = 0;
  std::string reason;
};

// A line for the user. Details are shown with -v only.
struct Say {
  enum class Level { detail, info, warning, error } level = Level::info;
  std::string text;
};

// Why an attempt or the job ended, for the report.
struct Cause {
  enum class Kind {
    none,
    exited,       // a rank ended with a code other than 0
    killed,       // a rank was ended by a signal
    not_started,  // the program could not be run
    left_early,   // a rank on libhvdcomm ended with 0 while others ran
    aborted,      // a rank called hvd_abort
    agent_ended,
    link_lost,
    host_silent,
    stalled,    // ranks ran and made no progress
    bad_state,  // the ranks did not load the same state
    storage,    // the checkpoint folder could not be used, though it could before
    user,
    wall_time,
    preempted,  // a host, or all of them, will be taken away
    output,     // standard output could not be written
    setup,      // a checkpoint folder or hosts that cannot be used
  } kind = Kind::none;
  std::optional<uint32_t> rank;  // whose end it was
  std::optional<uint32_t> host;
  std::optional<uint32_t> gone;  // a rank that does not answer its peers any more
  int code = 0;                  // exit code
  int signal = 0;
  Killer killer = Killer::unknown;  // when signal is KILL
  bool saved = false;      // of stops in order: a checkpoint was committed while the ranks stopped
  std::string text;        // a sentence
  std::string last_lines;  // of the rank's stderr
  Duration unnoticed{};    // how long it had gone on when it was found
};

// The job is over. Output still on its way is printed first.
struct Finish {
  int code = 0;
  bool leaves = false;       // it is not over, but for this launcher: agents go on
  bool from_worker = false;  // the code is a worker's own
  Cause cause;
  std::vector<std::string> consequences;  // ends that followed in the last attempt, like with like
  uint32_t attempts = 0;
  std::optional<uint64_t> newest_step;  // of whole checkpoints of ours
  std::string foreign_path;             // of the program's own newest one; empty: none
  uint64_t reached_step = 0;
  RunAccount account;
  std::vector<std::string> slow;  // ranks that others waited for, sentences
};

using Action = std::variant<Connect, Drop, Send, HostFailed, Say, Finish>;
using Actions = std::vector<Action>;

class Policy {
 public:
  // `job` must outlive the policy. `seed` feeds the back-off's jitter.
  Policy(const Job& job, Placement placement, uint64_t seed);

  // The first actions: connect to every host.
  Actions start(Time now);
  // In place of start(): takes over what an earlier launcher's agents run, `elapsed` after the
  // start of the job.
  Actions take_over(const JobMemory& memory, Duration elapsed, Time now);
  // For a launcher that takes over from this one.
  JobMemory memory() const;
  Actions step(const Event& event, Time now);
  // When a Tick is due, if nothing else happens.
  std::optional<Time> next_deadline() const;

  uint32_t attempt() const { return attempt_; }
  // An earlier launcher's agents are being asked; what it knew is not known yet.
  bool taking_over() const { return phase_ == Phase::taking_over; }
  uint64_t reached_step() const { return reached_step_; }
  const std::optional<ForeignCheckpoint>& foreign() const { return foreign_; }
  // The host of a rank in the current attempt.
  uint32_t host_of(uint32_t rank) const;

 private:
  enum class Phase {
    taking_over,
    gathering,
    proving,
    preparing,
    running,
    stopping,
    backing_off,
    done
  };
  // In proving: agents are asked to listen, then to dial; after a failure there is a pause.
  enum class ProofStep { opening, dialling, pausing };
  enum class Link { none, connecting, up };
  enum class Request {
    open_proof,
    probe_write,
    probe_seen,
    probe_remove,
    lock,
    list,
    verify,
    commit,
    prune,
    other
  };

  struct HostState {
    Link link = Link::none;
    AgentHello hello;
    std::string address, own_address;
    bool active = false;        // has been given the current attempt
    std::optional<Time> retry;  // when to connect again
    std::string last_reason;    // of its last end
    bool leaving = false;       // it will be taken away: holds no rank again
    bool unlisted = false;      // so is this, when another can take its ranks
    bool spare = false;         // may take the ranks of another
    bool set_aside = false;     // others hold its ranks before it does again
    Time fenced{};              // nothing of the job runs there from then on
    uint32_t refusals = 0;      // ends since it was last up

    bool proof_open = false;  // its agent was asked to listen
    uint32_t proof_port = 0;  // 0 until it does
    std::string proof_error;
    std::vector<HostAddress> addresses;
    std::vector<uint32_t> preferred;  // indices of `addresses`, best first
    std::optional<HostAddress> data;  // that ranks use; none: all of them are on one machine
  };

  struct OpenRequest {
    Request kind;
    uint32_t host;
    uint64_t step;
  };

  // A save of one step, while ranks report their shards.
  struct Save {
    std::vector<Shard> shards;  // by rank, digest empty until reported
    uint32_t reported = 0;
    std::string note, error;
    Manifest manifest;  // when they all have
    uint32_t commits_open = 0;
  };

  // Ends that followed a failure: how, of which rank first, and how many others.
  struct Consequence {
    std::string how, first;
    uint32_t others = 0;
  };

  void on(const HostUp& event, Time now);
  void on(const HostDown& event, Time now);
  void on(const AgentSaid& event, Time now);
  void on(const StopRequested& event, Time now);
  void on(const OutputFailed& event, Time now);
  void on(const HostsListed& event, Time now);
  void on(const Tick& event, Time now);

  void said(uint32_t host, const ProofOpened& m, Time now);
  void said(uint32_t host, const Dialled& m, Time now);
  void said(uint32_t host, const WorkerEnded& m, Time now);
  void said(uint32_t host, const AttemptStopped& m, Time now);
  void said(uint32_t host, const Beat& m, Time now);
  void said(uint32_t host, const ExchangeBlob& m, Time now);
  void said(uint32_t host, const ShardSaved& m, Time now);
  void said(uint32_t host, const ShardKept& m, Time now);
  void said(uint32_t host, const StateLoaded& m, Time now);
  void said(uint32_t host, const ForeignCheckpoint& m, Time now);
  void said(uint32_t host, const WorkerAborted& m, Time now);
  void said(uint32_t host, const DirectoryProbed& m, Time now);
  void said(uint32_t host, const LockTaken& m, Time now);
  void said(uint32_t host, const CheckpointsListed& m, Time now);
  void said(uint32_t host, const CheckpointVerified& m, Time now);
  void said(uint32_t host, const Performed& m, Time now);
  void said(uint32_t host, const AgentNotice& m, Time now);
  void said(uint32_t host, const RankStalled& m, Time now);
  void said(uint32_t host, const RankMoved& m, Time now);
  void said(uint32_t host, const RanksSeen& m, Time now);
  void said(uint32_t host, const StacksTaken& m, Time now);
  void said(uint32_t host, const Leaving& m, Time now);
  template <class Other>
  void said(uint32_t, const Other&, Time) {}

  void remember(const JobMemory& m, Time now);
  void hear(const AgentSaid& said, Time now);
  void not_taken(const HostDown& event, Time now);
  void heard_of(uint32_t host, Time now);
  void out_of_reach(uint32_t host, Time now);
  void judge_takeover(Time now);
  void nothing_to_take();
  void end_older_attempts(uint32_t newest, Time now);
  void go_on_with_held(Time now);
  bool stop_as_asked(Time now);
  void fail_without(std::optional<uint32_t> host, Time now);
  void taken_over(const std::string& reason);
  void hung_up(int signal);
  void leave();

  void gather(Time now);
  void gather_on(Time now);
  void gather_failed();

  void host_failed(uint32_t host, Time now);
  void rank_failed(uint32_t host);
  bool gives_up_ranks(const Cause& cause) const;
  bool can_stand_in(uint32_t host, size_t ranks, Time now) const;
  std::optional<uint32_t> find_spare(uint32_t lost, Time now) const;
  bool take_spare(uint32_t lost, Time now);
  void fill_gaps(Time now);
  void retry_later(uint32_t host, Time now);
  bool may_retry(uint32_t host) const;
  void retry_hosts(Time now);
  void wait_for_hosts(Time now);
  void replace_late_hosts(Time now);

  bool check_machines(Time now);

  bool on_one_machine() const;
  std::vector<HostPair> unproven() const;
  void open_proofs();
  void close_proofs();
  void forget_proofs(uint32_t lost);
  void prove(Time now);
  void stop_proving();
  void dial_peers(Time now);
  void order_addresses();
  void judge_proof(Time now);
  void proof_late(Time now);
  void proved(Time now);
  std::optional<uint32_t> worst_reached() const;
  void proof_failed(Time now);
  std::string describe_proof() const;
  std::string known_address(uint32_t host) const;
  std::string data_address(uint32_t host) const;

  void prepare(Time now);
  bool may_trust() const;
  void go_trusting();
  void ask_to_verify(const Candidate& candidate);
  void verified_late(uint64_t step, const CheckpointVerified& m, Time now);
  void refuse_state(uint64_t step, const std::string& why, Time now);
  void clear_drafts();
  void prepare_late(Time now);
  void folder_failed(const std::string& text, Time now);
  void setup_failed(const std::string& text, Time now, int first_code = 2);
  void take_locks();
  void take_lock(uint32_t host, uint64_t stale_ns);
  void watch_lock(uint32_t host, const LockTaken& m, Time now);
  void watch_locks_again(Time now);
  void list_checkpoints();
  void find_foreign();
  void verify_newest(Time now);
  void probe_done(Time now);
  void go(const Candidate* from);
  const KeptSteps::value_type* newest_kept() const;
  void go_from_memory(const KeptSteps::value_type& kept);
  // What an attempt goes on from; an empty path: the beginning.
  struct Origin {
    std::string path;
    uint64_t step = 0;
    const KeptSteps::value_type* kept = nullptr;
  };
  Origin origin_of(const Candidate* from);
  void start_attempt(const Origin& origin);
  void begin_attempt();
  StartAttempt make_start(const HostPlaces& host, const Origin& origin) const;

  void watch_pace(uint32_t host, const Beat& beat);
  void look_at_ranks(Time now);
  void judge_stall(Time now);
  std::string describe_stall(const std::optional<Suspect>& suspect, Duration quiet) const;
  std::set<uint32_t> looked_at() const;
  void take_stacks(Duration limit);
  void act_on_stall(Time now);
  void stall_tick(Time now);
  void forget_stalls();

  Cause preemption_of(uint32_t host, const std::string& reason) const;
  void preempt_all(const std::string& signal, int number, Time now);
  std::optional<uint32_t> replace_leaving(Time now);
  void host_came(uint32_t host);
  void host_went(uint32_t host);
  void leave_unlisted(Time now);
  void preempted(Time now);

  void asked_again(int signal, Time now);
  void wall_time_over(Time now);
  void end_in_order(const Cause& cause, const std::string& why, Duration grace, Time now);
  void count_down(Time now);
  void note_consequence(const WorkerEnded& m);
  std::vector<std::string> told_consequences() const;
  void note_saved();
  void fail(Cause cause, Time now);
  void stop_attempt(Duration grace, Time now);
  void stopped_all(Time now);
  const Rule* rule_for(const Cause& cause) const;
  bool is_the_end(const Rule* rule, std::string& why_not);
  void exclude_host(Time now);
  bool may_go_on(std::string& why_not, Time now);
  bool tries_another_port();
  void relaunch(Time now);
  void drop_unstopped(Time now);
  void finish_with_cause();

  void account_phase();
  void note_steps(const std::vector<RankStep>& steps);
  void commit_if_whole(uint64_t step, Save& save);
  bool rescues() const;
  bool can_be_rescued(const Save& save) const;
  void rescue_when_all_told();
  void rescue();
  void commit(uint64_t step, Save& save);
  void save_done(uint64_t step, Save& save);
  void prune();

  bool current(uint32_t attempt) const { return attempt == attempt_; }
  bool is_rank_of(uint32_t host, uint32_t rank) const;
  bool holds_ranks(uint32_t host) const;
  uint32_t ask(uint32_t host, Request kind, uint64_t step);
  std::optional<OpenRequest> take_request(uint32_t request, uint32_t host);
  uint32_t open_requests(Request kind) const;
  void send(uint32_t host, ToAgent message);
  void send_to_active(const ToAgent& message);
  void say(Say::Level level, std::string text);
  std::string rank_name(uint32_t rank) const;
  bool can_go_on() const;
  uint32_t restart_limit() const;
  // Ranks do what they are there for, or save on their way out.
  bool ranks_work() const;

  const Job& job_;
  Placement placement_;
  std::vector<HostState> hosts_;
  HostLedger ledger_;
  std::minstd_rand random_;
  Actions out_;

  Phase phase_ = Phase::gathering;
  std::optional<Time> deadline_;   // of the phase
  uint32_t attempt_ = 0;           // current, or the last one started
  uint32_t attempts_started_ = 0;  // in this run
  bool first_refusal_ = false;
  Time gather_until_{};              // end of the start deadline
  std::optional<Time> spare_after_;  // when hosts that are not up give way
  std::map<uint32_t, DialsToHost> dials_;
  uint32_t dial_round_ = 0;
  ProofStep proof_step_ = ProofStep::opening;
  Cause cause_;  // of the stop under way
  Cause last_failure_;
  std::optional<Time> stop_asked_;  // by the user, first
  std::optional<Cause> last_word_;  // what forbids another attempt behind a failure
  std::optional<Time> wall_stop_;   // when the stop for the wall time begins
  std::optional<Time> count_down_;  // when a stop in order says again what it waits for
  Time kill_at_{};                  // when the grace ends
  std::set<uint32_t> working_;      // ranks whose end was not told
  std::vector<Consequence> consequences_;
  uint32_t previous_size_ = 0;

  struct StopInOrder {
    Cause cause;
    std::string why;
    Duration grace;
  };
  struct Takeover {
    std::set<uint32_t> waiting;  // hosts that did not answer yet
    std::map<uint32_t, Held> held;
    std::vector<AgentSaid> said;  // before it was known what to make of it
    bool was_between = false;
    int stop_signal = 0;
    std::optional<StopInOrder> stop;  // another one
    std::string out_of_reach;         // lines, each behind its newline
  };
  Takeover takeover_;

  uint32_t ended_ok_ = 0;
  std::map<uint32_t, std::vector<std::string>> exchange_;  // by round, blobs by rank
  std::map<uint32_t, std::set<uint32_t>> exchanged_;       // ranks that gave theirs
  std::map<uint32_t, StateLoaded> loaded_;                 // by rank
  std::map<uint64_t, Save> saves_;
  std::set<uint32_t> handed_in_;  // ranks that saved after the failure

  uint32_t next_request_ = 1;
  std::map<uint32_t, OpenRequest> requests_;
  std::string nonce_;
  FolderKind folder_ = FolderKind::shared;
  std::vector<std::pair<uint32_t, bool>> seen_by_;
  // Locks of others that may be dead: since when they were not touched, and their lease.
  struct WatchedLock {
    uint64_t touched_ns = 0;
    Time since{};
    Duration lease{};
  };
  std::map<uint32_t, WatchedLock> watched_locks_;  // by host
  std::optional<Time> look_at_locks_;
  std::map<uint32_t, CheckpointsListed> listings_;
  std::vector<Candidate> candidates_;
  // Newest that was whole when the agents that hold the ranks now last had to do with it.
  std::optional<Candidate> trusted_;
  std::vector<ShardDefect> defects_;
  KeptSteps kept_;
  bool kept_told_ = false;  // the user knows that states are kept
  std::set<uint64_t> known_, verified_, rejected_;
  uint64_t resumed_step_ = 0;
  bool resumed_ = false;
  bool from_memory_ = false;  // and not from a folder
  bool committed_ever_ = false;
  bool had_checkpoint_ = false;  // of ours, whole: the beginning is not what to go on from
  uint32_t failures_from_checkpoint_ = 0;
  std::optional<ForeignCheckpoint> foreign_;

  std::set<uint32_t> stalled_;      // ranks of the current attempt
  uint32_t look_ = 0;               // number of the last one
  std::optional<Time> look_until_;  // while one is under way
  std::set<uint32_t> looked_at_;    // hosts that did not answer yet
  std::map<uint32_t, RankView> views_;
  std::optional<Time> warn_again_;  // the user knows of a stall
  Time stalled_since_{};
  std::optional<Cause> stall_;        // to be acted on when the ranks' stacks are taken
  std::optional<Time> stacks_until_;  // at the latest
  std::set<uint32_t> stacks_asked_;   // hosts that did not answer yet

  Stragglers stragglers_;
  std::optional<uint32_t> slow_;  // rank of this attempt that the user knows of
  std::vector<std::string> slow_told_;
  TimeAccount times_;
  uint64_t reached_step_ = 0;
  uint64_t reached_at_start_ = 0;
  bool progressed_ = false;  // in this attempt
  RestartBudget budget_;
  Time pause_until_{};             // before the next attempt
  bool address_in_use_ = false;    // rank 0 said so in this attempt
  bool other_port_tried_ = false;  // for that; once in a run
  uint32_t same_endings_ = 0;      // attempts in a row that ended the same way
};

// The wall time's arithmetic. The stop begins so early that the grace, KILL and taking leave lie
// inside: at wall - grace - margin, where the margin is 2 s or a tenth of a short wall time. When
// that would leave the job less than half of the wall time, it gets half, and the grace is cut.
struct WallPlan {
  Duration stop_after;  // from the start
  Duration grace;
};
WallPlan plan_wall_time(Duration wall, Duration grace);

// "host-silent", for logs and reports.
const char* cause_word(Cause::Kind kind);

// Exit code of a job that ends by this cause.
int exit_code_of(const Cause& cause);

// "rank 3 on h1 was killed by SIGKILL", for people.
std::string describe_ending(const WorkerEnded& ended, const std::string& rank_name);

}  // namespace hvd
