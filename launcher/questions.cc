#include "launcher/questions.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
// Above those that the policy numbers.
constexpr uint32_t kFirstRequest = 1u << 31;
constexpr Duration kStacksLimit = 10s;
// For the answers to travel.
constexpr Duration kMargin = 2s;
}  // namespace

Questions::Questions(const Job& job, HostLinks& links)
    : job_(job), links_(links), door_(job.id), next_request_(kFirstRequest) {}

void Questions::serve(uint32_t attempt, Time now) {
  for (const ControlSocket::Question& question : door_.serve()) {
    if (question.words == "stacks") {
      ask_for_stacks(question.caller, attempt, now);
    } else {
      door_.refuse(question.caller, "this job's launcher does not know '" + question.words + "'");
    }
  }
}

void Questions::ask_for_stacks(uint64_t caller, uint32_t attempt, Time now) {
  const uint32_t request = next_request_++;
  Open& open = open_[request];
  open.caller = caller;
  open.until = now + kStacksLimit + kMargin;
  for (uint32_t host = 0; host < links_.count(); ++host) {
    if (!links_.up(host)) continue;
    open.hosts.insert(host);
    links_.send(host, TakeStacks{attempt, request, static_cast<uint64_t>(kStacksLimit.count())});
  }
  if (open.hosts.empty()) finish(open_.find(request));
}

bool Questions::take(uint32_t host, const StacksTaken& stacks) {
  if (stacks.request < kFirstRequest) return false;
  const auto open = open_.find(stacks.request);
  if (open == open_.end() || open->second.hosts.erase(host) == 0) return true;
  for (const RankStack& one : stacks.ranks) {
    open->second.answers[one.rank] = told_stack(one, job_.hosts[host].name);
  }
  if (open->second.hosts.empty()) finish(open);
  return true;
}

Questions::Opens::iterator Questions::finish(Opens::iterator at) {
  const Open& open = at->second;
  std::string text;
  for (const auto& [rank, answer] : open.answers) text += answer;
  for (const uint32_t host : open.hosts) text += job_.hosts[host].name + " did not answer\n";
  if (text.empty()) {
    door_.refuse(open.caller, "no rank of job " + job_.id + " runs now");
  } else {
    door_.answer(open.caller, text);
  }
  return open_.erase(at);
}

void Questions::forget_host(uint32_t host) {
  for (auto open = open_.begin(); open != open_.end();) {
    const bool last = open->second.hosts.erase(host) > 0 && open->second.hosts.empty();
    open = last ? finish(open) : std::next(open);
  }
}

void Questions::act(Time now) {
  for (auto open = open_.begin(); open != open_.end();) {
    open = open->second.until <= now ? finish(open) : std::next(open);
  }
}

std::optional<Time> Questions::deadline() const {
  std::optional<Time> first;
  for (const auto& [request, open] : open_) first = earlier(first, open.until);
  return first;
}

std::string told_stack(const RankStack& stack, const std::string& host) {
  return "rank " + std::to_string(stack.rank) + " on " + host + "\n" + stack.text + "\n";
}

}  // namespace hvd
