#include "launcher/launch.h"

#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>

#include "base/exit_codes.h"
#include "base/poller.h"
#include "launcher/event_log.h"
#include "launcher/history.h"
#include "launcher/host_links.h"
#include "launcher/host_watch.h"
#include "launcher/job_file.h"
#include "launcher/journal.h"
#include "launcher/questions.h"
#include "launcher/rank_output.h"
#include "launcher/report.h"
#include "launcher/signals.h"
#include "launcher/stdin_reader.h"
#include "launcher/suspension.h"
#include "launcher/terminal_text.h"
#include "launcher/writer.h"
#include "supervisor/policy.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

// After Goodbye, agents with nothing left to stop end at once.
constexpr Duration kGoodbyeLimit = 5s;
constexpr Duration kShortJob = 1s;
// A start that takes long says what it waits for this often, for so many hosts.
constexpr Duration kWaitNews = 5s;
constexpr size_t kMostWaitsTold = 4;
// A log folder that takes nothing for so long is worth a word.
constexpr Duration kSlowFile = 5s;

// Names of what the poller watches; hosts count from kFirstHost.
constexpr uint64_t kSignals = 0;
constexpr uint64_t kWriterNews = 1;
constexpr uint64_t kInputNews = 2;
constexpr uint64_t kQuestions = 3;
constexpr uint64_t kDiscovery = 4;
constexpr uint64_t kFirstHost = 5;

bool same_file(int a, int b) {
  struct stat first, second;
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

class Launch {
 public:
  // Of a job that does not survive us, `watch` is null.
  Launch(const Job& job, const Placement& placement, const LaunchSettings& settings,
         std::function<void()> on_started, Watch* watch)
      : job_(job),
        settings_(settings),
        watch_(watch),
        started_(now()),
        history_(job_),
        links_(job_, poller_, kFirstHost, settings.accept_new_host_keys),
        questions_(job_, links_),
        on_started_(std::move(on_started)),
        output_(job_, settings, out_, err_, files_),
        policy_(job_, placement, std::hash<std::string>()(job_.id)) {
    if (watch_ != nullptr) output_.note_in(watch_->shown);
  }

  int run();
  std::optional<int> take_over(const Predecessor& predecessor);

 private:
  // The first attempt's rank that our standard input goes to.
  struct InputTarget {
    uint32_t host, attempt, rank;
  };

  void watch_all();
  void turn();
  std::optional<Time> next_deadline() const;
  void handle(const Ready& ready);
  void read_signals();
  void suspend();
  void stand_still();
  void note_start(const WorkerStarted& m);
  void keep_stacks(uint32_t host, const StacksTaken& m);
  void take_written();
  void lose_stdout(int number);
  void warn_of_slow_files(Time now);
  void look_for_hosts(Time now);
  void take_news(std::vector<HostLinks::News>& news);
  void take(uint32_t host, FromAgent message);
  void tell_broken_links();
  void go_on(uint32_t host);
  void take_up(uint32_t host, Held held);
  void drop_link(uint32_t host);

  void step_queue();
  void perform(const Actions& actions);
  void perform_one(const Connect& action);
  void perform_one(const Drop& action) { drop_link(action.host); }
  void perform_one(const Send& action);
  void perform_one(const HostFailed& action);
  void perform_one(const Say& action);
  void perform_one(const Finish& action);
  bool tell_waits(Say::Level level);

  void open_input(uint32_t host, const StartAttempt& start);
  void pass_input();

  void wind_up(Time now);
  void dismiss_agents(Time now);
  bool written();
  std::string not_written() const;
  void report();
  void tell(const std::string& text);
  void note_progress();
  void note_memory();
  void leave_agents();

  Job job_;  // whose hosts may grow
  const LaunchSettings& settings_;
  Watch* const watch_;
  const Time started_;
  Poller poller_;
  Signals signals_;
  Suspension suspension_;
  Writer out_, own_err_;
  // Who reads both from one file gets them in order; else none waits for the other's reader.
  Writer& err_ = same_file(STDOUT_FILENO, STDERR_FILENO) ? out_ : own_err_;
  Writer files_;  // of the log folder
  History history_;
  HostLinks links_;
  std::optional<HostWatch> host_watch_;  // of a job that discovers its hosts
  Questions questions_;
  std::function<void()> on_started_;
  std::set<uint32_t> started_ranks_;  // while somebody waits for all
  RankOutput output_;
  std::optional<StdinReader> input_;
  InputTarget input_target_{};
  Policy policy_;
  std::deque<Event> queue_;
  Time last_turn_{};
  int stdout_error_ = 0;               // see Writer::broken
  std::string lost_output_;            // why stdout is not whole, a sentence
  std::optional<Time> waits_told_at_;  // next time
  std::set<uint32_t> unneeded_;        // hosts that nobody waits for
  uint32_t stacks_told_ = 0;           // attempt

  // While the job is taken over.
  std::map<uint32_t, AgentHello> hellos_;     // of hosts whose Held did not come yet
  std::optional<std::vector<Say>> withheld_;  // until it is known that there is a job

  // The end: output drained, agents dismissed, report told once all is written that it speaks of.
  std::optional<Finish> finish_;
  std::optional<Time> goodbye_until_;
  bool dismissed_ = false;
  bool reported_ = false;
  bool over_ = false;
};

void Launch::watch_all() {
  poller_.watch(signals_.fd(), kSignals, {true, false});
  poller_.watch(questions_.fd(), kQuestions, {true, false});
  for (const int writer : {out_.fd(), own_err_.fd(), files_.fd(), history_.fd()}) {
    poller_.watch(writer, kWriterNews, {true, false});
  }
  if (!job_.discovery.empty()) {
    host_watch_.emplace(job_, now());
    poller_.watch(host_watch_->fd(), kDiscovery, {true, false});
  }
  history_.add(opening_line(job_.id, started_));
  if (watch_ != nullptr) history_.open();
  last_turn_ = now();
}

int Launch::run() {
  watch_all();
  perform(policy_.start(last_turn_));
  history_.remember();
  history_.recall_hosts();
  step_queue();
  while (!over_) turn();
  return finish_->code;
}

std::optional<int> Launch::take_over(const Predecessor& predecessor) {
  if (predecessor.may_be_over) withheld_.emplace();
  output_.count_logs(predecessor.memory.attempt, predecessor.memory.attempts_started);
  watch_all();
  perform(policy_.take_over(predecessor.memory, predecessor.elapsed, last_turn_));
  step_queue();
  while (!over_) turn();
  const bool nothing = finish_->leaves && finish_->code == kExitNothingToResume;
  if (nothing && predecessor.may_be_over) return std::nullopt;
  return finish_->code;
}

void Launch::turn() {
  std::vector<Ready> ready = poller_.wait(next_deadline());
  // Having slept, read all that has arrived before judging anybody's silence; what goes on arriving
  // must not keep us from it.
  const Time woke = now();
  const bool slept = woke - last_turn_ > job_.silence / 2;
  do {
    for (const Ready& one : ready) handle(one);
    step_queue();
    const bool more = slept && now() - woke < job_.silence / 4;
    ready = more ? poller_.wait(Time{}) : std::vector<Ready>{};
  } while (!ready.empty());
  if (suspension_.ready(now())) return stand_still();
  const Time at = now();
  last_turn_ = at;
  std::vector<HostLinks::News> news;
  links_.judge(at, news);
  take_news(news);
  tell_broken_links();
  if (waits_told_at_ && *waits_told_at_ <= at) {
    waits_told_at_.reset();
    if (!finish_ && tell_waits(Say::Level::info)) waits_told_at_ = at + kWaitNews;
  }
  output_.act(at);
  questions_.act(at);
  warn_of_slow_files(at);
  look_for_hosts(at);
  if (policy_.next_deadline() && *policy_.next_deadline() <= at) queue_.push_back(Tick{});
  step_queue();
  const bool failed = finish_ && finish_->code != 0;
  // The history of a job that was over at once and well would be of no use to anybody.
  if (!history_.is_open() && (failed || at - started_ > kShortJob)) history_.open();
  if (finish_) wind_up(at);
}

std::optional<Time> Launch::next_deadline() const {
  std::optional<Time> next = earlier(policy_.next_deadline(), goodbye_until_);
  next = earlier(next, suspension_.deadline());
  next = earlier(next, waits_told_at_);
  next = earlier(next, output_.deadline());
  next = earlier(next, questions_.deadline());
  next = earlier(next, files_.stuck_at(kSlowFile));
  next = earlier(next, history_.deadline());
  if (host_watch_ && !policy_.taking_over()) next = earlier(next, host_watch_->deadline());
  return earlier(next, links_.deadline());
}

void Launch::handle(const Ready& ready) {
  if (ready.id == kSignals) return read_signals();
  if (ready.id == kWriterNews) {
    take_written();
    return warn_of_slow_files(now());
  }
  if (ready.id == kInputNews) return pass_input();
  if (ready.id == kDiscovery) return look_for_hosts(now());
  if (ready.id == kQuestions) return questions_.serve(policy_.attempt(), now());
  std::vector<HostLinks::News> news;
  links_.serve(static_cast<uint32_t>(ready.id - kFirstHost), now(), news);
  take_news(news);
}

void Launch::read_signals() {
  for (const int number : signals_.take()) {
    if (number == SIGTSTP) {
      suspend();
      continue;
    }
    // Nothing is left to stop in order: our reader or an agent does not take its last words.
    if (finish_ && number != SIGUSR1) _exit(kExitSignalBase + number);
    queue_.push_back(StopRequested{number});
  }
}

void Launch::suspend() {
  if (suspension_.begun()) return;
  std::set<uint32_t> hosts;
  for (uint32_t host = 0; host < links_.count(); ++host) {
    if (!links_.up(host)) continue;
    hosts.insert(host);
    links_.send(host, Suspend{});
  }
  suspension_.begin(std::move(hosts), now());
}

void Launch::stand_still() {
  suspension_.end();
  Signals::stop_here();
  // What arrived meanwhile is read before anything is judged late.
  last_turn_ = Time{};
  for (uint32_t host = 0; host < links_.count(); ++host) {
    if (!links_.up(host)) continue;
    links_.find(host)->forgive_silence(now());
    links_.send(host, Resume{});
  }
}

void Launch::take_written() {
  for (const auto& [host, credit] : output_.take_credit()) links_.send(host, credit);
  if (stdout_error_ == 0) lose_stdout(out_.broken(Stream::out));
  const std::string error = files_.take_error();
  if (error.empty()) return;
  const std::string what = files_.incomplete() ? "a log file is not whole: " : "";
  perform_one(Say{Say::Level::warning, what + error});
}

// A reader that is gone wants no more; one that could not take all was promised all.
void Launch::lose_stdout(int number) {
  if (number == 0) return;
  stdout_error_ = number;
  output_.discard();
  // A terminal that is gone, not a disk that fails.
  if (number == EIO && watch_ != nullptr) {
    if (!finish_) queue_.push_back(StopRequested{SIGHUP});
    return;
  }
  if (number != EPIPE) {
    lost_output_ = std::string("standard output cannot be written: ") + std::strerror(number);
    perform_one(Say{Say::Level::error, lost_output_});
  }
  if (finish_) return;
  queue_.push_back(number == EPIPE ? Event(StopRequested{SIGPIPE})
                                   : Event(OutputFailed{lost_output_}));
}

void Launch::warn_of_slow_files(Time now) {
  const std::string trouble = history_.take_trouble(now);
  if (!trouble.empty()) perform_one(Say{Say::Level::warning, trouble});
  for (const std::string& warning : history_.take_warnings()) {
    perform_one(Say{Say::Level::warning, warning});
  }
  const std::string path = files_.take_stuck(now, kSlowFile);
  if (path.empty()) return;
  perform_one(Say{Say::Level::warning, "nothing could be written to " + path + " for " +
                                           format_duration(kSlowFile) +
                                           "; ranks that go on writing will have to wait"});
}

// Not for a job that is over: whoever comes is of no use to it.
void Launch::look_for_hosts(Time now) {
  if (finish_ && host_watch_) {
    poller_.forget(host_watch_->fd());
    host_watch_.reset();
  }
  if (!host_watch_ || policy_.taking_over()) return;
  const std::optional<HostsListed> listed = host_watch_->advance(now);
  const std::string trouble = host_watch_->take_trouble();
  if (!trouble.empty()) perform_one(Say{Say::Level::warning, trouble});
  if (!listed) return;
  links_.grow();
  // Whoever takes the job over must know hosts by the same numbers.
  if (watch_ != nullptr) watch_->journal.job_file = job_file_text(job_, "");
  queue_.push_back(*listed);
}

void Launch::take_news(std::vector<HostLinks::News>& news) {
  for (HostLinks::News& one : news) {
    if (const auto* down = std::get_if<AgentLink::Down>(&one.what)) {
      queue_.push_back(HostDown{one.host, down->end, down->reason});
      drop_link(one.host);
    } else {
      take(one.host, std::move(std::get<FromAgent>(one.what)));
    }
  }
}

void Launch::tell_broken_links() {
  for (const HostLinks::Broken& one : links_.take_broken()) {
    suspension_.heard(one.host);
    questions_.forget_host(one.host);
    const Duration left = std::max<Duration>(links_.find(one.host)->given_up_at() - now(), 0s);
    perform_one(Say{Say::Level::warning, one.reason + "; its ranks go on, and it is dialled for " +
                                             format_duration(left)});
  }
}

// The connection to a host is another one. What the policy knows of it holds.
void Launch::go_on(uint32_t host) {
  links_.send(host, TakeOutput{output_.positions(host)});
  perform_one(Say{Say::Level::info, job_.hosts[host].name + " is connected again"});
}

// An agent of the launcher before us. What that one gave to the ranks, they are given again.
void Launch::take_up(uint32_t host, Held held) {
  if (held.state != HeldState::none) {
    const Host& spec = job_.hosts[host];
    const size_t of_the_host = spec.env.size() + (spec.gpus.empty() ? 0 : 1);
    job_.forwarded = held.start.forwarded;
    if (held.start.set.size() >= of_the_host) {
      job_.set.assign(held.start.set.begin() + static_cast<ptrdiff_t>(of_the_host),
                      held.start.set.end());
    }
    output_.open(host, held.start, true);
    for (const Place& place : held.start.places) {
      if (!held.start.input || place.rank != held.start.input_rank) continue;
      links_.send(host, Input{held.start.attempt, place.rank, true, ""});
    }
  }
  if (withheld_) {
    const std::vector<Say> said = *std::exchange(withheld_, std::nullopt);
    for (const Say& say : said) perform_one(say);
  }
  links_.send(host, TakeOutput{output_.positions(host)});
  const Channel& channel = links_.find(host)->channel();
  queue_.push_back(
      HostUp{host, hellos_[host], channel.peer_address(), channel.own_address(), std::move(held)});
  hellos_.erase(host);
}

void Launch::take(uint32_t host, FromAgent message) {
  if (auto* m = std::get_if<Output>(&message)) return output_.take(host, *m, now());
  if (auto* m = std::get_if<OutputEnd>(&message)) return output_.end(host, *m);
  if (auto* m = std::get_if<InputCredit>(&message)) {
    if (input_ && host == input_target_.host) input_->grant(m->bytes);
    return;
  }
  if (auto* m = std::get_if<StacksTaken>(&message)) {
    if (questions_.take(host, *m)) return;
    keep_stacks(host, *m);
  }
  if (std::holds_alternative<Suspended>(message)) return suspension_.heard(host);
  if (auto* m = std::get_if<WorkerStarted>(&message)) note_start(*m);
  if (auto* m = std::get_if<Held>(&message)) {
    return hellos_.count(host) > 0 ? take_up(host, std::move(*m)) : go_on(host);
  }
  if (auto* m = std::get_if<AgentHello>(&message)) {
    if (links_.find(host)->takes_over()) {
      hellos_[host] = *m;
      return;
    }
    const Channel& channel = links_.find(host)->channel();
    queue_.push_back(HostUp{host, *m, channel.peer_address(), channel.own_address(), {}});
    return;
  }
  queue_.push_back(AgentSaid{host, std::move(message)});
}

void Launch::note_start(const WorkerStarted& m) {
  if (!on_started_ || m.attempt != policy_.attempt()) return;
  started_ranks_.insert(m.rank);
  if (started_ranks_.size() == job_.size) std::exchange(on_started_, nullptr)();
}

void Launch::keep_stacks(uint32_t host, const StacksTaken& m) {
  std::string text;
  for (const RankStack& one : m.ranks) text += told_stack(one, job_.hosts[host].name);
  const std::string path = text.empty() ? "" : history_.add_stacks(m.attempt, std::move(text));
  if (path.empty() || std::exchange(stacks_told_, m.attempt) == m.attempt) return;
  perform_one(Say{Say::Level::info, "where the ranks wait is in " + path});
}

void Launch::drop_link(uint32_t host) {
  links_.drop(host);
  suspension_.heard(host);
  questions_.forget_host(host);
  output_.end_host(host);
}

// ---- events and actions ----

void Launch::step_queue() {
  while (!queue_.empty()) {
    const Event event = std::move(queue_.front());
    queue_.pop_front();
    const Time at = now();
    const auto* down = std::get_if<HostDown>(&event);
    if (down != nullptr && down->end == HostEnd::taken) history_.give_up();
    history_.add(log_line(event, at - started_));
    perform(policy_.step(event, at));
  }
  note_progress();
  if (watch_ != nullptr && !finish_ && !policy_.taking_over()) note_memory();
}

void Launch::perform(const Actions& actions) {
  for (const Action& action : actions) {
    history_.add(log_line(action, now() - started_));
    std::visit([&](const auto& a) { perform_one(a); }, action);
  }
}

void Launch::perform_one(const Connect& action) {
  drop_link(action.host);
  std::vector<HostLinks::News> news;
  links_.open(action.host, action.take_over, news);
  take_news(news);
  if (!action.needed) {
    unneeded_.insert(action.host);
    return;
  }
  unneeded_.erase(action.host);
  if (!waits_told_at_) waits_told_at_ = now() + kWaitNews;
}

// Says what holds up the start; false if nothing does.
bool Launch::tell_waits(Say::Level level) {
  const Time at = now();
  size_t waiting = 0;
  for (uint32_t host = 0; host < links_.count(); ++host) {
    const AgentLink* link = links_.find(host);
    if (link == nullptr || link->up() || link->down() || unneeded_.count(host) > 0) continue;
    if (++waiting > kMostWaitsTold) continue;
    perform_one(Say{level, "still waiting: " + link->waiting_for(at)});
  }
  if (waiting > kMostWaitsTold) {
    const std::string more = std::to_string(waiting - kMostWaitsTold);
    perform_one(Say{level, "still waiting for " + more + " more hosts"});
  }
  return waiting > 0;
}

void Launch::perform_one(const Send& action) {
  if (links_.find(action.host) == nullptr) return;
  if (const auto* start = std::get_if<StartAttempt>(&action.message)) {
    output_.open(action.host, *start);
    open_input(action.host, *start);
  }
  links_.send(action.host, action.message);
}

void Launch::perform_one(const HostFailed& action) {
  history_.note_host_failure(job_.hosts[action.host].name, action.reason);
}

void Launch::perform_one(const Say& action) {
  if (withheld_) return withheld_->push_back(action);
  const int needed = action.level == Say::Level::error    ? -1
                     : action.level == Say::Level::detail ? 1
                                                          : 0;
  if (settings_.verbosity >= needed) tell(action.text);
}

void Launch::perform_one(const Finish& action) {
  // Where a host refused us, those that are still tried again are no better.
  if (action.code == kExitNoHosts) tell_waits(Say::Level::error);
  finish_ = action;
  if (stdout_error_ == EPIPE || action.leaves) output_.drop_all();
}

// ---- input ----

void Launch::open_input(uint32_t host, const StartAttempt& start) {
  const auto is_target = [&](const Place& place) { return place.rank == start.input_rank; };
  if (!start.input || std::none_of(start.places.begin(), start.places.end(), is_target)) return;
  input_target_ = {host, start.attempt, start.input_rank};
  input_.emplace(kInputWindow);
  poller_.watch(input_->fd(), kInputNews, {true, false});
}

void Launch::pass_input() {
  StdinReader::Piece piece = input_->take();
  const auto& [host, attempt, rank] = input_target_;
  if (piece.bytes.empty() && !piece.last) return;
  links_.send(host, Input{attempt, rank, piece.last, std::move(piece.bytes)});
}

// ---- the end ----

// Output first; then the agents' end, and the report behind what was written. A reader that takes
// nothing holds this up, as with any program; a signal ends it.
void Launch::wind_up(Time now) {
  if (!output_.ended()) return;
  dismiss_agents(now);
  if (!reported_ && written()) {
    reported_ = true;
    report();
  }
  over_ =
      reported_ && !links_.any() && out_.idle() && err_.idle() && files_.idle() && history_.over();
}

// They go on, and whatever they are to do was sent.
void Launch::leave_agents() {
  dismissed_ = true;
  for (uint32_t host = 0; host < links_.count(); ++host) drop_link(host);
}

void Launch::dismiss_agents(Time now) {
  if (!dismissed_ && finish_->leaves) return leave_agents();
  if (!dismissed_) {
    dismissed_ = true;
    goodbye_until_ = now + kGoodbyeLimit;
    for (uint32_t host = 0; host < links_.count(); ++host) {
      // One whose connection is dialled again hears it then.
      if (!links_.up(host) && !links_.is_broken(host)) drop_link(host);
      links_.send(host, Goodbye{0});
    }
  }
  if (goodbye_until_ && now >= *goodbye_until_) {
    for (uint32_t host = 0; host < links_.count(); ++host) {
      if (links_.is_broken(host)) {
        tell(job_.hosts[host].name + " could not be told of the end: its agent ends by itself " +
             "when it has been without hvdlaunch for " + format_duration(job_.survive));
      }
      drop_link(host);
    }
  }
  if (!links_.any()) goodbye_until_.reset();
}

// What is to be said of the end is known: it is no success if our reader was not given all. What a
// log folder lacks was said, and takes nothing from what the ranks did.
bool Launch::written() {
  if (!out_.idle() || !err_.idle()) return false;
  take_written();
  const std::string lost = not_written();
  if (finish_->code != 0 || lost.empty()) return true;
  finish_->code = kExitOwnFailure;
  finish_->cause.kind = Cause::Kind::output;
  finish_->cause.text = lost;
  if (!history_.is_open()) history_.open();
  return true;
}

std::string Launch::not_written() const {
  if (!lost_output_.empty()) return lost_output_;
  const int number = err_.broken(Stream::err);
  if (number == 0 || number == EPIPE) return "";
  return std::string("standard error cannot be written: ") + std::strerror(number);
}

void Launch::report() {
  const bool nothing = finish_->leaves && finish_->code == kExitNothingToResume;
  if (watch_ != nullptr && (!finish_->leaves || nothing)) history_.remove_journal();
  if (withheld_ && nothing) return;
  if (withheld_) {
    const std::vector<Say> said = *std::exchange(withheld_, std::nullopt);
    for (const Say& say : said) perform_one(say);
  }
  if (finish_->leaves) {
    for (const std::string& text : report_texts(job_, *finish_, 0)) tell(text);
    return;
  }
  history_.add_report(
      report_json(job_, *finish_, now() - started_, report_texts(job_, *finish_, 0)));
  for (const std::string& text : report_texts(job_, *finish_, settings_.verbosity)) tell(text);
}

void Launch::tell(const std::string& text) {
  output_.tell(terminal_lines("hvdlaunch: ", text));
}

void Launch::note_memory() {
  JobMemory memory = policy_.memory();
  if (memory == watch_->journal.memory) return;
  watch_->journal.memory = std::move(memory);
  history_.note_journal(journal_text(watch_->journal));
}

void Launch::note_progress() {
  if (job_.checkpoint_dir.empty()) return;
  RunProgress progress{policy_.reached_step(), "", 0};
  if (policy_.foreign()) {
    progress.foreign_path = policy_.foreign()->path;
    progress.foreign_step = policy_.foreign()->step;
  }
  history_.note_progress(progress);
}

}  // namespace

namespace {

// Pieces of output come and go by the thousand: their memory is kept, not mapped anew for each.
void keep_memory() {
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 8 << 20);
}

int refuse(const Error& error) {
  std::fputs(terminal_lines("hvdlaunch: ", error.text).c_str(), stderr);
  return kExitUsage;
}

}  // namespace

int launch(const Job& job, const Placement& placement, const LaunchSettings& settings,
           std::function<void()> on_started) {
  keep_memory();
  std::optional<Watch> watch;
  if (job.survive > Duration::zero()) {
    Result<Watch> begun = begin_watch(StateFolder(), job, settings);
    if (!begun) return refuse(begun.error());
    watch = std::move(*begun);
  }
  return Launch(job, placement, settings, std::move(on_started), watch ? &*watch : nullptr).run();
}

std::optional<int> take_over(const Job& job, const Placement& placement,
                             const LaunchSettings& settings, const Predecessor& predecessor,
                             Fd lock) {
  keep_memory();
  const StateFolder state;
  Result<Watch> watch = go_on_watching(state, job.id, job.size, std::move(lock));
  if (!watch) return refuse(watch.error());
  Result<Journal> journal = read_journal(state, job.id);
  if (!journal) return refuse(journal.error());
  watch->journal = std::move(*journal);
  return Launch(job, placement, settings, nullptr, &*watch).take_over(predecessor);
}

}  // namespace hvd
