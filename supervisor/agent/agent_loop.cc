#include "supervisor/agent/agent_loop.h"

#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "base/build_id.h"
#include "supervisor/agent/checkpoint_tasks.h"
#include "supervisor/agent/complain.h"
#include "supervisor/agent/own_addresses.h"
#include "supervisor/agent/stacks.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {

// Output of past attempts that may wait for credit, over all ranks.
constexpr size_t kMostLeftOutput = 64u << 20;

std::vector<std::string> own_environment() {
  std::vector<std::string> words;
  for (char** word = environ; word != nullptr && *word != nullptr; ++word) words.push_back(*word);
  return words;
}

std::string absolute(const std::string& workdir) {
  if (!workdir.empty() && workdir.front() == '/') return workdir;
  char* here = getcwd(nullptr, 0);
  const std::string base = here == nullptr ? "/" : here;
  std::free(here);
  return workdir.empty() ? base : base + "/" + workdir;
}

// What the answer to a task says when the task is not even tried.
DirectoryProbed refusal(const ProbeDirectory& task, const std::string& why) {
  return {task.request, false, why};
}
LockTaken refusal(const TakeLock& task, const std::string& why) {
  LockTaken answer;
  answer.request = task.request;
  answer.error = why;
  return answer;
}
CheckpointsListed refusal(const ListCheckpoints& task, const std::string& why) {
  CheckpointsListed answer;
  answer.request = task.request;
  answer.error = why;
  return answer;
}
CheckpointVerified refusal(const VerifyCheckpoint& task, const std::string& why) {
  CheckpointVerified answer{task.request, task.step, {}, {}};
  for (const uint32_t rank : task.shards) answer.defects.push_back({rank, why});
  return answer;
}
JobFileRead refusal(const ReadJobFile& task, const std::string& why) {
  return {task.request, "", why};
}
template <class M>
Performed refusal(const M& task, const std::string& why) {
  return {task.request, why};
}

}  // namespace

AgentLoop::AgentLoop(AgentOptions options, AgentSeat seat)
    : options_(std::move(options)),
      seat_(std::move(seat)),
      facts_(read_facts()),
      file_limit_(raise_file_limit()),
      link_(poller_, STDIN_FILENO, STDOUT_FILENO),
      lease_(seat_.lease),
      proof_(poller_, options_.host),
      lock_(std::make_shared<DirectoryLock>(facts_.boot_id)) {}

bool AgentLoop::set_up() {
  Result<WorkerSocket> socket = WorkerSocket::open(poller_, seat_.folder.path + "/agent");
  Result<ReservedPort> port = ReservedPort::take();
  if (!socket || !port) {
    complain((socket ? port.error() : socket.error()).text);
    return false;
  }
  socket_.emplace(std::move(*socket));
  keep_port(std::move(*port));
  watch_for_leave();
  tasks_.emplace(poller_, Source::tasks);
  stacks_.emplace(poller_, Source::stacks);
  link_.send_raw(std::string(kAgentGreeting) + own_build_id() + "\n");
  return true;
}

int AgentLoop::run() {
  if (!set_up()) return 1;
  while (true) {
    link_.flush();
    if (const std::optional<int> code = verdict(now())) return *code;
    watch();
    for (const Ready& ready : poller_.wait(deadline())) dispatch(ready);
    act(now());
  }
}

std::optional<int> AgentLoop::verdict(Time now) {
  if (keeper_dead_) {
    kill_whole_tree();
    remove_socket_folder(seat_.folder.path);
    seat_.group.leave_and_remove();
    return 1;
  }
  if (lease_.over(now)) {
    complain(greeted_ ? "lost the launcher: no answer to its heartbeats within the lease"
                      : "no launcher spoke to it within " + format_duration(kStartLease));
    kill_whole_tree();
    return 1;
  }
  if (parting_ == Parting::none || attempt_) return std::nullopt;
  lock_->release();
  if (parting_ == Parting::launcher_gone) return 1;
  return link_.unsent() == 0 ? std::optional(0) : std::nullopt;
}

void AgentLoop::watch() {
  const bool room_for_output = link_.unsent() < LauncherLink::kPatientAbove;
  const bool room_for_messages = link_.unsent() < LauncherLink::kBusyAbove;
  if (!keeper_dead_) poller_.watch(seat_.keeper.get(), poll_name(Source::keeper), {true, false});
  link_.watch();
  if (door_) door_->watch();
  tasks_->watch();
  stacks_->watch();
  term_->watch({greeted_ && !told_leave_, false});
  socket_->watch(room_for_messages);
  if (attempt_) attempt_->watch(room_for_output, room_for_messages);
}

std::optional<Time> AgentLoop::deadline() const {
  std::optional<Time> first = earlier(lease_.end(), socket_->deadline());
  first = earlier(first, proof_.deadline());
  if (greeted_ && !suspended_ && !link_.ended()) first = earlier(first, next_beat_);
  if (survives_ && parting_ == Parting::none) first = earlier(first, lease_.stop_at());
  if (door_) first = earlier(first, door_->deadline());
  return attempt_ ? earlier(first, attempt_->deadline()) : first;
}

void AgentLoop::dispatch(const Ready& ready) {
  const uint64_t serial = serial_of(ready.id);
  switch (source_of(ready.id)) {
    case Source::keeper: {
      char byte;
      keeper_dead_ = recv(seat_.keeper.get(), &byte, 1, MSG_DONTWAIT) == 0;
      break;
    }
    case Source::wire_in:
      take_messages();
      break;
    case Source::wire_out:
      break;  // every round of the loop writes what it can
    case Source::tasks:
      for (const FromAgent& answer : tasks_->take_answers()) link_.send(answer);
      break;
    case Source::stacks:
      for (const FromAgent& answer : stacks_->take_answers()) link_.send(answer);
      break;
    case Source::listener:
      socket_->accept_waiting(now());
      break;
    case Source::connection:
      if (ready.write) socket_->flush(serial);
      if (ready.read) take_news(socket_->receive(serial));
      break;
    case Source::exit:
      // Ranks that got the same TERM may be faster.
      tell_leave();
      if (attempt_) attempt_->worker_ended(serial);
      break;
    case Source::notify:
      if (attempt_) attempt_->notified(serial);
      break;
    case Source::out:
      if (attempt_) attempt_->output_ready(serial, Stream::out);
      break;
    case Source::err:
      if (attempt_) attempt_->output_ready(serial, Stream::err);
      break;
    case Source::input:
      if (attempt_) attempt_->input_ready(serial);
      break;
    case Source::proof_listener:
      proof_.accept_waiting(now());
      break;
    case Source::proof_caller:
      proof_.caller_ready(serial);
      break;
    case Source::proof_call:
      proof_.call_ready(serial);
      break;
    case Source::leave:
      tell_leave();
      break;
    case Source::door:
      door_->accept_waiting(now());
      break;
    case Source::door_caller:
      door_->serve(serial);
      break;
  }
}

void AgentLoop::take_news(std::vector<WorkerNews> news) {
  for (WorkerNews& one : news) {
    if (attempt_) attempt_->heard(std::move(one));
  }
}

void AgentLoop::take_messages() {
  for (ToAgent& message : link_.receive()) {
    if (!greeted_ && !std::holds_alternative<LauncherHello>(message)) {
      complain("the launcher did not begin with its hello");
      return part(Parting::launcher_gone, 0ns);
    }
    if (link_.is_new(message)) std::visit([this](auto& m) { handle(m); }, message);
  }
  if (!link_.complaint().empty()) complain(link_.complaint());
}

void AgentLoop::act(Time now) {
  if (link_.ended() && parting_ == Parting::none) lose_launcher();
  if (door_) look_at_door(now);
  if (survives_ && now >= lease_.stop_at()) part(Parting::launcher_gone, failure_grace_);
  socket_->expire(now);
  proof_.expire(now);
  const Dialled dialled = proof_.take_results();
  if (!dialled.results.empty()) link_.send(dialled);
  for (const std::string& notice : socket_->take_notices()) link_.send(AgentNotice{notice});
  if (attempt_) {
    attempt_->act(now);
    if (attempt_->gone()) close_attempt();
  }
  if (greeted_ && !suspended_ && !link_.ended() && now >= next_beat_) beat(now);
}

// ---- without a launcher ----

void AgentLoop::lose_launcher() {
  if (!survives_) return part(Parting::launcher_gone, failure_grace_);
  link_.detach();
  if (suspended_) handle(Resume{});
  lease_.lost(now());
}

void AgentLoop::look_at_door(Time now) {
  door_->expire(now);
  for (AttachCaller& caller : door_->take_callers()) {
    // Its own launcher is told of the end when it is one, by the next call.
    if (parting_ != Parting::none && caller.hello.session == session_) {
      caller.dismiss();
      continue;
    }
    const std::string refusal = refusal_of(caller.hello, now);
    if (refusal.empty()) {
      let_in(std::move(caller), now);
    } else {
      caller.refuse(refusal);
    }
  }
  const bool heard = !link_.ended() && !lease_.is_alone(now);
  if (door_->take_wish() && !heard) part(Parting::launcher_gone, 0ns);
}

// Empty: it may attach.
std::string AgentLoop::refusal_of(const LauncherHello& hello, Time now) const {
  if (hello.protocol != kProtocol) return "its agent is of another version of hvdlaunch";
  if (hello.job != options_.job) return "its agent is of job " + options_.job;
  if (parting_ != Parting::none) return "its ranks are being stopped: no launcher came in time";
  if (hello.session == session_) return "";
  const bool heard = !link_.ended() && !lease_.is_alone(now);
  if (!hello.take_over || heard) {
    return "job " + options_.job + " is watched by " + launcher_;
  }
  return "";
}

// With another launcher the lease holds on from here. Our own one may have called long ago, and
// counts from when it last heard us: it holds on from the first echo.
void AgentLoop::let_in(AttachCaller caller, Time now) {
  const bool same = caller.hello.session == session_;
  session_ = caller.hello.session;
  launcher_ = caller.hello.launcher;
  if (suspended_) handle(Resume{});
  if (!same) {
    lease_.echoed(now.time_since_epoch().count(), now);
    send_lease(seat_, lease_.end());
  }
  if (attempt_) {
    attempt_->tell_steps_again();
    for (OutputStream* stream : attempt_->streams()) stream->pause();
  }
  for (OutputStream& stream : left_output_) stream.pause();
  link_.attach(std::move(caller), own_hello(), what_is_held(), same);
  next_beat_ = now;
  take_messages();
}

AgentHello AgentLoop::own_hello() const {
  AgentHello hello;
  hello.hostname = facts_.hostname;
  hello.boot_id = facts_.boot_id;
  hello.network = facts_.network;
  hello.cores = facts_.cores;
  hello.gpus = facts_.gpus;
  hello.reserved_port = port_->number();
  return hello;
}

Held AgentLoop::what_is_held() const {
  Held held;
  if (!any_attempt_) return held;
  held.start = last_start_;
  held.state = !attempt_                ? HeldState::gone
               : attempt_->is_running() ? HeldState::running
                                        : HeldState::stopping;
  return held;
}

// Of a stream that is not here any more, the launcher waits for the end.
void AgentLoop::handle(const TakeOutput& message) {
  std::vector<OutputStream*> streams;
  if (attempt_) streams = attempt_->streams();
  for (OutputStream& stream : left_output_) streams.push_back(&stream);
  for (OutputStream* stream : streams) {
    take_up(*stream, message);
    stream->pump(link_);
  }
  for (const OutputPosition& one : message.streams) {
    const OutputEnd of{one.attempt, one.rank, one.stream};
    const bool here = std::any_of(streams.begin(), streams.end(), [&](const OutputStream* stream) {
      return stream->identity() == of;
    });
    if (!here) link_.send(of);
  }
}

void AgentLoop::beat(Time now) {
  next_beat_ = now + lease_.beat_period();
  Beat beat;
  beat.agent_time = now.time_since_epoch().count();
  beat.attempt = last_attempt_;
  beat.heard = link_.heard();
  if (attempt_) {
    beat.steps = attempt_->take_changed_steps();
    attempt_->reap_orphans();
    attempt_->note_memory();
  }
  link_.send(beat);
}

// The keeper ignores it for both: an agent that ends would take its ranks along.
void AgentLoop::watch_for_leave() {
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, nullptr);
  std::signal(SIGTERM, SIG_DFL);
  term_.emplace(poller_, Fd(signalfd(-1, &term, SFD_CLOEXEC | SFD_NONBLOCK)),
                poll_name(Source::leave));
  HVD_CHECK(term_->valid());
}

void AgentLoop::tell_leave() {
  signalfd_siginfo info;
  if (!greeted_ || told_leave_ || read(term_->get(), &info, sizeof info) != sizeof info) return;
  told_leave_ = true;
  link_.send(Leaving{"its agent was told to end (SIGTERM)"});
}

void AgentLoop::close_attempt() {
  for (OutputStream& stream : attempt_->take_streams()) left_output_.push_back(std::move(stream));
  forget_oldest_output();
  socket_->end();
  // The new port is taken while the old one is still held, so that it is another one.
  Result<ReservedPort> port = ReservedPort::take();
  if (port) {
    keep_port(std::move(*port));
  } else {
    link_.send(AgentNotice{port.error().text});
  }
  link_.send(AttemptStopped{attempt_->number(), port_->number()});
  attempt_.reset();
}

void AgentLoop::keep_port(ReservedPort port) {
  port.lend();
  port_.emplace(std::move(port));
}

void AgentLoop::forget_oldest_output() {
  size_t bytes = 0, kept = 0;
  while (kept < left_output_.size()) {
    bytes += left_output_[left_output_.size() - 1 - kept].held();
    if (bytes > kMostLeftOutput) break;
    ++kept;
  }
  if (kept == left_output_.size()) return;
  const auto end = left_output_.end() - static_cast<ptrdiff_t>(kept);
  // The launcher waits for the end of every stream.
  for (auto stream = left_output_.begin(); stream != end; ++stream) link_.send(stream->identity());
  left_output_.erase(left_output_.begin(), end);
  link_.send(AgentNotice{"output of earlier attempts was dropped: nobody took it"});
}

void AgentLoop::part(Parting parting, Duration grace) {
  // A launcher that is gone after its Goodbye has said all it had to.
  if (parting_ == Parting::none) parting_ = parting;
  if (!attempt_) return;
  StopAttempt stop;
  stop.attempt = attempt_->number();
  stop.grace_ns = static_cast<uint64_t>(grace.count());
  attempt_->stop(stop, now());
}

void AgentLoop::handle(const LauncherHello& message) {
  if (greeted_) return;
  greeted_ = true;
  host_name_ = message.host_name;
  failure_grace_ = bounded(message.failure_grace_ns);
  lease_.set_silence(message.silence_ns);
  session_ = message.session;
  launcher_ = message.launcher;
  link_.send(own_hello());
  if (message.survive_ns > 0) open_door(bounded(message.survive_ns));
}

void AgentLoop::open_door(Duration survival) {
  Result<AttachDoor> door = AttachDoor::open(poller_, options_.job, options_.host);
  if (!door) return link_.send(AgentNotice{door.error().text});
  door_.emplace(std::move(*door));
  survives_ = true;
  lease_.set_survival(survival, failure_grace_);
  link_.keep_session();
}

void AgentLoop::handle(const Echo& message) {
  lease_.echoed(message.agent_time, now());
  send_lease(seat_, lease_.end());
}

void AgentLoop::handle(const OpenProof& message) {
  link_.send(proof_.open(message));
}

void AgentLoop::handle(const DialPeers& message) {
  proof_.dial(message, now());
}

void AgentLoop::handle(const CloseProof&) {
  proof_.close();
}

void AgentLoop::handle(StartAttempt& message) {
  const bool old = any_attempt_ && message.attempt <= last_attempt_;
  if (old || parting_ != Parting::none) return;
  if (attempt_) {
    link_.send(AgentNotice{"attempt " + std::to_string(message.attempt) +
                           " was not started: attempt " + std::to_string(attempt_->number()) +
                           " is not stopped"});
    return;
  }
  any_attempt_ = true;
  last_attempt_ = message.attempt;
  if (survives_) last_start_ = message;
  // Who takes the job over asks for the newest attempt's output only.
  std::erase_if(left_output_, [](const OutputStream& stream) { return stream.done(); });
  if (message.free_port) port_->release();
  WorkerSurroundings around;
  around.job = options_.job;
  around.host_name = host_name_;
  around.cores = facts_.cores;
  around.devices = facts_.devices;
  if (!message.data_card.empty()) around.cards = card_names();
  around.workdir = absolute(message.workdir);
  around.agent_socket = seat_.folder.path + "/agent";
  around.login = own_environment();
  around.file_limit = file_limit_;
  around.keep_output = survives_;
  attempt_.emplace(poller_, link_, *socket_, kept_, std::move(message), around, seat_.folder.path);
}

void AgentLoop::handle(const StopAttempt& message) {
  if (attempt_) attempt_->stop(message, now());
}

void AgentLoop::handle(const Credit& message) {
  if (attempt_) attempt_->grant(message);
  std::erase_if(left_output_, [&](OutputStream& stream) {
    const OutputEnd& identity = stream.identity();
    if (identity.attempt == message.attempt && identity.rank == message.rank &&
        identity.stream == message.stream) {
      stream.grant(message.bytes);
      stream.pump(link_);
    }
    return stream.over();
  });
}

template <class M>
void AgentLoop::pass_on(const M& message) {
  if (attempt_ && message.attempt == attempt_->number()) socket_->send_all(ToWorker(message));
}

template <class Answer, class M>
void AgentLoop::submit(const M& message) {
  const bool taken = tasks_->submit([message] { return FromAgent(Answer(perform(message))); });
  if (!taken) link_.send(refusal(message, "too many checkpoint tasks wait on this host"));
}

void AgentLoop::handle(const ProbeDirectory& message) {
  submit<DirectoryProbed>(message);
}
void AgentLoop::handle(const TakeLock& message) {
  const bool taken =
      tasks_->submit([lock = lock_, message] { return FromAgent(lock->perform(message)); });
  if (!taken) link_.send(refusal(message, "too many checkpoint tasks wait on this host"));
}
void AgentLoop::handle(const ListCheckpoints& message) {
  submit<CheckpointsListed>(message);
}
void AgentLoop::handle(const VerifyCheckpoint& message) {
  submit<CheckpointVerified>(message);
}
void AgentLoop::handle(const PruneCheckpoints& message) {
  submit<Performed>(message);
}
void AgentLoop::handle(const WriteJobFile& message) {
  submit<Performed>(message);
}

void AgentLoop::handle(const ReadJobFile& message) {
  submit<JobFileRead>(message);
}

void AgentLoop::handle(const CommitCheckpoint& message) {
  if (message.attempt < last_attempt_) {
    link_.send(refusal(message, "attempt " + std::to_string(message.attempt) +
                                    " may not commit: attempt " + std::to_string(last_attempt_) +
                                    " has begun"));
    return;
  }
  submit<Performed>(message);
}

void AgentLoop::handle(const LookAtRanks& message) {
  if (attempt_ && message.attempt == attempt_->number()) attempt_->show(message, now());
}

void AgentLoop::handle(const TakeStacks& message) {
  std::vector<RankProcess> ranks;
  if (attempt_ && message.attempt == attempt_->number()) ranks = attempt_->processes();
  const bool taken = stacks_->submit(
      [message, ranks = std::move(ranks)] { return FromAgent(take_stacks(message, ranks)); });
  if (!taken) link_.send(StacksTaken{message.attempt, message.request, {}});
}

void AgentLoop::handle(const Suspend&) {
  suspended_ = true;
  lease_.suspend(now());
  send_lease(seat_, lease_.end());
  if (attempt_) attempt_->suspend();
  link_.send(Suspended{});
}

void AgentLoop::handle(const Resume&) {
  suspended_ = false;
  lease_.resume(now());
  send_lease(seat_, lease_.end());
  if (attempt_) attempt_->resume();
  next_beat_ = now();
}

void AgentLoop::handle(const Input& message) {
  if (attempt_) attempt_->input(message);
}

void AgentLoop::handle(const Goodbye& message) {
  part(Parting::goodbye, bounded(message.grace_ns));
}

}  // namespace hvd
