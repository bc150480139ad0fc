#include "launcher/event_log.h"

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

namespace hvd {

namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json line(const char* what, Duration at) {
  return Json{{"t", static_cast<double>(at.count() / 1000) / 1e6}, {"what", what}};
}

// What is told of each message; messages without an overload are not logged.
template <class M>
bool describe(const M&, Json&) {
  return false;
}
bool describe(const AgentHello& m, Json& j) {
  j.update({{"message", "agent-hello"}, {"hostname", m.hostname}, {"cores", m.cores}});
  return true;
}
bool describe(const ProofOpened& m, Json& j) {
  Json addresses = Json::array();
  for (const HostAddress& one : m.addresses) addresses.push_back(one.card + " " + one.address);
  j.update({{"message", "proof-opened"}, {"addresses", addresses}, {"error", m.error}});
  return true;
}
bool describe(const Dialled& m, Json& j) {
  Json results = Json::array();
  for (const DialReport& one : m.results) {
    results.push_back({one.host, one.address, static_cast<int>(one.end), one.error});
  }
  j.update({{"message", "dialled"}, {"results", results}});
  return true;
}
bool describe(const WorkerStarted& m, Json& j) {
  j.update(
      {{"message", "worker-started"}, {"attempt", m.attempt}, {"rank", m.rank}, {"pid", m.pid}});
  return true;
}
bool describe(const WorkerEnded& m, Json& j) {
  j.update({{"message", "worker-ended"},
            {"attempt", m.attempt},
            {"rank", m.rank},
            {"exit_code", m.exit_code},
            {"signal", m.signal},
            {"not_started", m.not_started},
            {"left_early", m.left_early}});
  return true;
}
bool describe(const AttemptStopped& m, Json& j) {
  j.update({{"message", "attempt-stopped"}, {"attempt", m.attempt}});
  return true;
}
bool describe(const ShardSaved& m, Json& j) {
  j.update({{"message", "shard-saved"},
            {"attempt", m.attempt},
            {"rank", m.shard.rank},
            {"step", m.step},
            {"error", m.error}});
  return true;
}
bool describe(const ShardKept& m, Json& j) {
  j.update({{"message", "shard-kept"},
            {"attempt", m.attempt},
            {"rank", m.shard.rank},
            {"step", m.step},
            {"error", m.error}});
  return !m.error.empty();  // of every step of every rank, nobody wants to read
}
bool describe(const StateLoaded& m, Json& j) {
  j.update({{"message", "state-loaded"},
            {"attempt", m.attempt},
            {"rank", m.rank},
            {"step", m.step},
            {"digest", m.state_digest},
            {"error", m.error}});
  return true;
}
bool describe(const ForeignCheckpoint& m, Json& j) {
  j.update(
      {{"message", "foreign-checkpoint"}, {"rank", m.rank}, {"step", m.step}, {"path", m.path}});
  return true;
}
bool describe(const WorkerAborted& m, Json& j) {
  j.update(
      {{"message", "worker-aborted"}, {"rank", m.rank}, {"code", m.code}, {"reason", m.reason}});
  return true;
}
bool describe(const DirectoryProbed& m, Json& j) {
  j.update({{"message", "directory-probed"}, {"seen", m.seen}, {"error", m.error}});
  return true;
}
bool describe(const LockTaken& m, Json& j) {
  j.update({{"message", "lock-taken"},
            {"taken", m.taken},
            {"alive", m.alive},
            {"holder", m.holder.job},
            {"error", m.error}});
  return true;
}
bool describe(const CheckpointsListed& m, Json& j) {
  Json steps = Json::array();
  for (const ListedCheckpoint& one : m.found) steps.push_back(one.step);
  j.update({{"message", "checkpoints-listed"}, {"steps", steps}, {"error", m.error}});
  return true;
}
bool describe(const CheckpointVerified& m, Json& j) {
  j.update({{"message", "checkpoint-verified"},
            {"step", m.step},
            {"whole", m.whole},
            {"defects", m.defects.size()}});
  return true;
}
bool describe(const RankStalled& m, Json& j) {
  j.update({{"message", "rank-stalled"}, {"attempt", m.attempt}, {"rank", m.rank}});
  return true;
}
bool describe(const RankMoved& m, Json& j) {
  j.update({{"message", "rank-moved"}, {"attempt", m.attempt}, {"rank", m.rank}});
  return true;
}
bool describe(const RanksSeen& m, Json& j) {
  Json ranks = Json::array();
  for (const RankView& view : m.ranks) {
    ranks.push_back({{"rank", view.rank},
                     {"step", view.step},
                     {"begun", view.begun},
                     {"quiet", static_cast<double>(view.quiet_ns) / 1e9},
                     {"state", std::string(view.state > ' ' && view.state < 0x7f ? 1 : 0,
                                           static_cast<char>(view.state))}});
  }
  j.update({{"message", "ranks-seen"}, {"attempt", m.attempt}, {"ranks", ranks}});
  return true;
}
bool describe(const Leaving& m, Json& j) {
  j.update({{"message", "leaving"}, {"reason", m.reason}});
  return true;
}
bool describe(const StacksTaken& m, Json& j) {
  j.update({{"message", "stacks-taken"}, {"attempt", m.attempt}, {"ranks", m.ranks.size()}});
  return true;
}
bool describe(const Performed& m, Json& j) {
  j.update({{"message", "performed"}, {"request", m.request}, {"error", m.error}});
  return true;
}
bool describe(const StartAttempt& m, Json& j) {
  j.update({{"message", "start-attempt"},
            {"attempt", m.attempt},
            {"ranks", m.places.size()},
            {"data_address", m.data_address},
            {"resume_from", m.resume_from},
            {"resume_step", m.resume_step},
            {"reason", m.restart_reason}});
  return true;
}
bool describe(const StopAttempt& m, Json& j) {
  j.update({{"message", "stop-attempt"},
            {"attempt", m.attempt},
            {"grace", static_cast<double>(m.grace_ns) / 1e9},
            {"reason", m.reason}});
  return true;
}
bool describe(const VerifyCheckpoint& m, Json& j) {
  j.update({{"message", "verify-checkpoint"}, {"step", m.step}, {"shards", m.shards}});
  return true;
}
bool describe(const CommitCheckpoint& m, Json& j) {
  j.update({{"message", "commit-checkpoint"}, {"attempt", m.attempt}, {"step", m.step}});
  return true;
}
bool describe(const PruneCheckpoints& m, Json& j) {
  j.update({{"message", "prune-checkpoints"}, {"steps", m.steps}});
  return true;
}
bool describe(const SaveResult& m, Json& j) {
  j.update({{"message", "save-result"}, {"step", m.step}, {"error", m.error}});
  return true;
}
bool describe(const LoadResult& m, Json& j) {
  j.update({{"message", "load-result"}, {"error", m.error}});
  return true;
}

const char* name(HostEnd end) {
  switch (end) {
    case HostEnd::refused:
      return "refused";
    case HostEnd::ended:
      return "ended";
    case HostEnd::lost:
      return "lost";
    case HostEnd::taken:
      return "taken";
    case HostEnd::silent:
      break;
  }
  return "silent";
}

struct Lines {
  Duration at;

  std::string operator()(const HostUp& e) const {
    Json j = line("host-up", at);
    j["host"] = e.host;
    j["address"] = e.address;
    return dump(j);
  }
  std::string operator()(const HostDown& e) const {
    Json j = line("host-down", at);
    j.update({{"host", e.host}, {"end", name(e.end)}, {"reason", e.reason}});
    return dump(j);
  }
  std::string operator()(const AgentSaid& e) const {
    Json j = line("said", at);
    j["host"] = e.host;
    const bool told = std::visit([&](const auto& m) { return describe(m, j); }, e.message);
    return told ? dump(j) : "";
  }
  std::string operator()(const HostsListed& e) const {
    Json j = line("hosts-listed", at);
    j.update({{"come", e.come}, {"gone", e.gone}});
    return dump(j);
  }
  std::string operator()(const StopRequested& e) const {
    Json j = line("stop-requested", at);
    j["signal"] = e.signal;
    return dump(j);
  }
  std::string operator()(const OutputFailed& e) const {
    Json j = line("output-failed", at);
    j["reason"] = e.reason;
    return dump(j);
  }
  std::string operator()(const Tick&) const { return ""; }
  std::string operator()(const Connect& a) const {
    Json j = line("connect", at);
    j["host"] = a.host;
    return dump(j);
  }
  std::string operator()(const Drop& a) const {
    Json j = line("drop", at);
    j["host"] = a.host;
    return dump(j);
  }
  std::string operator()(const Send& a) const {
    Json j = line("send", at);
    j["host"] = a.host;
    const bool told = std::visit([&](const auto& m) { return describe(m, j); }, a.message);
    return told ? dump(j) : "";
  }
  std::string operator()(const HostFailed& a) const {
    Json j = line("host-failed", at);
    j.update({{"host", a.host}, {"reason", a.reason}});
    return dump(j);
  }
  std::string operator()(const Say& a) const {
    Json j = line("say", at);
    j["text"] = a.text;
    return dump(j);
  }
  std::string operator()(const Finish& a) const {
    Json j = line("finish", at);
    j.update({{"code", a.code}, {"cause", cause_word(a.cause.kind)}, {"text", a.cause.text}});
    return dump(j);
  }
};

}  // namespace

std::string opening_line(const std::string& job, Time started) {
  Json j = line("begin", Duration::zero());
  j.update(
      {{"job", job}, {"wall", wall_clock_stamp()}, {"boot", seconds(started.time_since_epoch())}});
  return dump(j);
}
std::string log_line(const Event& event, Duration at) {
  return std::visit(Lines{at}, event);
}
std::string log_line(const Action& action, Duration at) {
  return std::visit(Lines{at}, action);
}

namespace {

Json times_json(const SpentTimes& times) {
  Json j = Json::object();
  for (size_t i = 0; i < times.size(); ++i) {
    std::string name = spent_name(static_cast<Spent>(i));
    std::replace(name.begin(), name.end(), ' ', '_');
    j[name] = seconds(times[i]);
  }
  return j;
}

Json history_json(const RunAccount& account) {
  Json attempts = Json::array();
  for (const AttemptAccount& one : account.attempts) {
    attempts.push_back({{"attempt", one.number},
                        {"began", seconds(one.began)},
                        {"ended", seconds(one.ended)},
                        {"ending", one.kind.empty() ? "well" : one.kind},
                        {"text", one.ending},
                        {"first_step", one.first_step},
                        {"from_memory", one.from_memory},
                        {"last_step", one.last_step},
                        {"steps_lost", one.steps_lost},
                        {"seconds", times_json(one.spent)}});
  }
  return attempts;
}

}  // namespace

std::string report_json(const Job& job, const Finish& finish, Duration wall,
                        const std::vector<std::string>& told) {
  Json j = {{"job", job.id},
            {"exit_code", finish.code},
            {"origin", finish.from_worker ? "worker" : "hvdlaunch"},
            {"size", job.size},
            {"attempts", finish.attempts},
            {"reached_step", finish.reached_step},
            {"wall_seconds", seconds(wall)}};
  if (finish.account.goodput) j["goodput"] = *finish.account.goodput;
  j["steps_lost"] = finish.account.steps_lost;
  j["seconds"] = times_json(finish.account.spent);
  j["seconds"]["unsaved"] = seconds(finish.account.unsaved);
  j["history"] = history_json(finish.account);
  if (!finish.slow.empty()) j["stragglers"] = finish.slow;
  if (!finish.consequences.empty()) j["consequences"] = finish.consequences;
  if (finish.newest_step) j["newest_checkpoint_step"] = *finish.newest_step;
  if (!finish.foreign_path.empty()) j["foreign_checkpoint"] = finish.foreign_path;
  Json cause = {{"kind", cause_word(finish.cause.kind)}, {"text", finish.cause.text}};
  if (finish.cause.rank) cause["rank"] = *finish.cause.rank;
  if (finish.cause.signal == SIGKILL && finish.cause.kind == Cause::Kind::killed) {
    cause["killed_for_memory"] = finish.cause.killer == Killer::memory    ? "yes"
                                 : finish.cause.killer == Killer::unknown ? "unknown"
                                                                          : "no";
  }
  if (finish.cause.host) cause["host"] = job.hosts[*finish.cause.host].name;
  j["cause"] = cause;
  j["told"] = told;
  return dump(j);
}

}  // namespace hvd
