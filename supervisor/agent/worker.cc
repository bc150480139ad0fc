#include "supervisor/agent/worker.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace hvd {

namespace {

std::optional<SpawnFailure> check_workdir(const std::string& workdir) {
  struct stat st;
  if (stat(workdir.c_str(), &st) != 0) {
    return SpawnFailure{errno_error("cannot enter the directory " + workdir, errno).text,
                        kExitCannotRun};
  }
  if (!S_ISDIR(st.st_mode)) {
    return SpawnFailure{"cannot enter the directory " + workdir + ": it is not one",
                        kExitCannotRun};
  }
  return std::nullopt;
}

OutputStream ended_stream(Poller& poller, uint32_t attempt, uint32_t rank, Stream which) {
  return OutputStream({attempt, rank, which}, WatchedFd(poller, Fd(), 0), 0, false);
}

}  // namespace

Worker::Worker(Poller& poller, uint64_t index, const StartAttempt& start, const Place& place)
    : poller_(poller),
      index_(index),
      attempt_(start.attempt),
      credit_(start.credit),
      place_(place),
      out_(ended_stream(poller, start.attempt, place.rank, Stream::out)),
      err_(ended_stream(poller, start.attempt, place.rank, Stream::err)),
      pulse_(bounded(start.stall_ns)),
      output_counts_(start.stall_asked) {}

Worker::~Worker() {
  if (child_.pidfd) poller_.forget(child_.pidfd.get());
  if (notify_) unlink(notify_->path().c_str());
}

std::optional<SpawnFailure> Worker::start(const StartAttempt& start, WorkerSurroundings around,
                                          const std::string& folder) {
  keep_output_ = around.keep_output;
  if (start.argv.empty()) return SpawnFailure{"no program was named", kExitNotFound};
  if (auto failure = check_workdir(around.workdir)) return failure;
  Result<NotifySocket> notify = NotifySocket::open(poller_, poll_name(Source::notify, index_),
                                                   folder + "/notify-" + std::to_string(rank()));
  if (!notify) return SpawnFailure{notify.error().text, kExitCannotRun};
  around.notify_socket = notify->path();
  notify_.emplace(std::move(*notify));

  SpawnSpec spec;
  spec.argv = compose_arguments(start, place_, around.host_name);
  spec.environment = compose_environment(start, place_, around);
  spec.workdir = around.workdir;
  spec.processors = around.processors;
  spec.new_session = true;
  spec.die_with_parent = true;
  spec.file_limit = around.file_limit;
  auto program = find_program(spec.argv[0], value_of(spec.environment, "PATH"), spec.workdir);
  if (auto* failure = std::get_if<SpawnFailure>(&program)) return *failure;
  spec.program = std::get<std::string>(program);
  SpawnResult result = spawn_with_pipes(spec, start.input && start.input_rank == rank());
  if (auto* failure = std::get_if<SpawnFailure>(&result)) return *failure;
  child_ = std::move(std::get<Child>(result));
  return std::nullopt;
}

SpawnResult Worker::spawn_with_pipes(SpawnSpec& spec, bool input) {
  Result<Pipe> out = make_pipe(), err = make_pipe(), in = input ? make_pipe() : Pipe();
  for (const auto* pipe : {&out, &err, &in}) {
    if (!*pipe) return SpawnFailure{pipe->error().text, kExitGaveUp};
  }
  spec.in = in->read.get();
  spec.out = out->write.get();
  spec.err = err->write.get();
  SpawnResult result = spawn(spec);
  if (std::holds_alternative<SpawnFailure>(result)) return result;
  set_nonblocking(out->read.get());
  set_nonblocking(err->read.get());
  out_ = OutputStream({attempt_, rank(), Stream::out},
                      {poller_, std::move(out->read), poll_name(Source::out, index_)}, credit_,
                      keep_output_);
  err_ = OutputStream({attempt_, rank(), Stream::err},
                      {poller_, std::move(err->read), poll_name(Source::err, index_)}, credit_,
                      keep_output_);
  if (input) {
    set_nonblocking(in->write.get());
    input_.emplace(WatchedFd(poller_, std::move(in->write), poll_name(Source::input, index_)));
  }
  return result;
}

void Worker::terminate() {
  if (!running()) return;
  ::kill(child_.pid, SIGTERM);
  ::kill(child_.pid, SIGCONT);
}

void Worker::kill() {
  killed_ = running() && ::kill(child_.pid, SIGKILL) == 0;
}

Pulse::Change Worker::look(Time now) {
  progress_.refresh();
  const uint64_t output = output_counts_ ? out_.taken() + err_.taken() : 0;
  if (progress_.signs() != seen_signs_ || output != seen_output_) pulse_.sign(now);
  seen_signs_ = progress_.signs();
  seen_output_ = output;
  pulse_.set_patient(progress_.on_storage() && process_state(child_.pid) != 'T');
  return pulse_.judge(now);
}

RankView Worker::view(Time now) const {
  return {rank(), progress_.step(), progress_.begun(),
          static_cast<uint64_t>(pulse_.quiet(now).count()),
          static_cast<unsigned char>(process_state(child_.pid))};
}

Ending Worker::take_end() {
  poller_.forget(child_.pidfd.get());
  const Ending ending = reap(child_);
  child_ = Child{};
  return ending;
}

std::vector<Notification> Worker::take_notifications() {
  if (!notify_) return {};
  return notify_->receive();
}

void Worker::watch(bool output, bool messages) {
  if (running()) poller_.watch(child_.pidfd.get(), poll_name(Source::exit, index_), {true, false});
  out_.watch(output);
  err_.watch(output);
  if (input_) input_->watch();
  if (notify_) notify_->watch(messages);
}

}  // namespace hvd
