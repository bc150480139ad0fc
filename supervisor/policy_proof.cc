// The policy's part about the data plane: which addresses of the hosts reach each other, proven by
// their agents before ranks start.
#include <algorithm>

#include "base/exit_codes.h"
#include "supervisor/machines.h"
#include "supervisor/policy.h"

namespace hvd {

using namespace std::chrono_literals;

namespace {
// For one dial. Beyond it, for agents of a busy machine to say how theirs ended.
constexpr Duration kDialLimit = 5s;
constexpr Duration kProofMargin = 10s;
// Once there is a way to every host, better ones get this long.
constexpr Duration kSettle = 50ms;
constexpr Duration kProveAgain = 1s;
}  // namespace

// True if the hosts that hold ranks and are up are one machine as far as addresses go.
bool Policy::on_one_machine() const {
  const HostState* first = nullptr;
  for (const HostPlaces& places : placement_) {
    const HostState& host = hosts_[places.host];
    if (host.link != Link::up) continue;
    if (first != nullptr && !same_machine(first->hello, host.hello)) return false;
    first = &host;
  }
  return true;
}

// Pairs that have not been dialled.
std::vector<HostPair> Policy::unproven() const {
  std::vector<uint32_t> hosts;
  for (const HostPlaces& places : placement_) hosts.push_back(places.host);
  std::vector<HostPair> pairs = pairs_to_prove(hosts);
  std::erase_if(pairs, [&](const HostPair& pair) {
    const auto dials = dials_.find(pair.to);
    return dials != dials_.end() && dials->second.count(pair.from) > 0;
  });
  return pairs;
}

// Lets the hosts that are up and will be dialled listen, as early as that is known.
void Policy::open_proofs() {
  if (on_one_machine()) return;
  std::set<uint32_t> wanted;
  if (dials_.empty()) {
    for (const HostPlaces& places : placement_) wanted.insert(places.host);
  } else {
    for (const HostPair& pair : unproven()) wanted.insert(pair.to);
  }
  for (const uint32_t number : wanted) {
    HostState& host = hosts_[number];
    if (host.link != Link::up || host.proof_open) continue;
    host.proof_open = true;
    host.proof_port = 0;
    send(number, OpenProof{ask(number, Request::open_proof, 0), job_.nonce});
  }
}

void Policy::close_proofs() {
  // Agents give up what is under way.
  for (auto& [to, dials] : dials_) {
    for (auto& [from, ends] : dials) {
      for (AddressDial& one : ends) {
        if (one.end == DialEnd::pending) one.end = DialEnd::no_answer;
      }
    }
  }
  std::erase_if(requests_, [](const auto& r) { return r.second.kind == Request::open_proof; });
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].proof_open && hosts_[host].link == Link::up) send(host, CloseProof{});
    hosts_[host].proof_open = false;
    hosts_[host].proof_port = 0;
  }
}

// A host that is gone has proven nothing for its next agent.
void Policy::forget_proofs(uint32_t lost) {
  hosts_[lost].proof_open = false;
  hosts_[lost].proof_port = 0;
  dials_.erase(lost);
  for (auto& [to, dials] : dials_) dials.erase(lost);
}

// A host was lost: what is known of other pairs stays, and what is half known does not, because
// the next dials end those under way.
void Policy::stop_proving() {
  phase_ = Phase::gathering;
  deadline_ = gather_until_;
  for (auto& [to, dials] : dials_) {
    std::erase_if(dials, [](const auto& pair) {
      return std::any_of(pair.second.begin(), pair.second.end(),
                         [](const AddressDial& one) { return one.end == DialEnd::pending; });
    });
  }
}

void Policy::prove(Time now) {
  for (HostState& host : hosts_) host.data.reset();
  if (on_one_machine()) {
    close_proofs();
    return prepare(now);
  }
  phase_ = Phase::proving;
  proof_step_ = ProofStep::opening;
  deadline_ = now + kDialLimit + kProofMargin;
  open_proofs();
  dial_peers(now);
}

void Policy::said(uint32_t from, const ProofOpened& m, Time now) {
  if (!take_request(m.request, from)) return;
  HostState& host = hosts_[from];
  host.proof_port = m.port;
  host.proof_error = m.error;
  std::vector<HostAddress> addresses = usable_addresses(m.addresses);
  // What was proven is kept by their places in the list.
  if (addresses != host.addresses) dials_.erase(from);
  host.addresses = std::move(addresses);
  if (phase_ == Phase::proving && proof_step_ == ProofStep::opening) dial_peers(now);
}

// Once all of them listen.
void Policy::dial_peers(Time now) {
  if (open_requests(Request::open_proof) > 0) return;
  proof_step_ = ProofStep::dialling;
  const std::vector<HostPair> missing = unproven();
  std::map<uint32_t, DialPeers> dials;
  if (!missing.empty()) ++dial_round_;
  for (const HostPair& pair : missing) {
    const HostState& to = hosts_[pair.to];
    DialPeers& m = dials[pair.from];
    m.round = dial_round_;
    m.nonce = job_.nonce;
    m.limit_ns = static_cast<uint64_t>(Duration(kDialLimit).count());
    DialTarget target{pair.to, to.proof_port, {}};
    for (const HostAddress& one : to.addresses) target.addresses.push_back(one.address);
    m.targets.push_back(std::move(target));
    dials_[pair.to][pair.from].assign(to.addresses.size(), AddressDial{});
  }
  for (auto& [host, m] : dials) send(host, std::move(m));
  order_addresses();
  judge_proof(now);
}

void Policy::order_addresses() {
  std::vector<std::vector<HostAddress>> addresses;
  std::vector<std::string> known;
  for (const HostPlaces& places : placement_) {
    addresses.push_back(hosts_[places.host].addresses);
    known.push_back(known_address(places.host));
  }
  const auto orders = prefer_addresses(addresses, known);
  for (size_t i = 0; i < placement_.size(); ++i) hosts_[placement_[i].host].preferred = orders[i];
}

void Policy::said(uint32_t from, const Dialled& m, Time now) {
  const bool dialling = phase_ == Phase::proving && proof_step_ == ProofStep::dialling;
  if (!dialling || m.round != dial_round_) return;
  for (const DialReport& one : m.results) {
    const auto dials = dials_.find(one.host);
    if (dials == dials_.end()) continue;
    const auto mine = dials->second.find(from);
    if (mine == dials->second.end() || one.address >= mine->second.size()) continue;
    mine->second[one.address] = {one.end, one.error};
  }
  judge_proof(now);
}

void Policy::judge_proof(Time now) {
  bool all = true;
  bool final = true;
  for (const HostPlaces& places : placement_) {
    HostState& host = hosts_[places.host];
    const AddressChoice choice = choose_address(host.preferred, dials_[places.host]);
    host.data.reset();
    if (choice.address) host.data = host.addresses[*choice.address];
    all = all && choice.address.has_value();
    final = final && choice.final;
  }
  if (all && final) return proved(now);
  if (all) deadline_ = earlier(deadline_, now + kSettle);
  if (!all && final) proof_failed(now);
}

void Policy::proof_late(Time now) {
  if (proof_step_ == ProofStep::pausing) return prove(now);
  const bool all = std::all_of(placement_.begin(), placement_.end(), [&](const HostPlaces& places) {
    return hosts_[places.host].data.has_value();
  });
  return all ? proved(now) : proof_failed(now);
}

void Policy::proved(Time now) {
  close_proofs();
  for (const HostPlaces& places : placement_) {
    const HostAddress& data = *hosts_[places.host].data;
    say(Say::Level::detail,
        "ranks reach " + job_.hosts[places.host].name + " at " + data.address + ", " + data.card);
  }
  prepare(now);
}

// The host that most ways to and from others are closed for; of two that only do not reach each
// other, the later one. None if no way is closed between two hosts.
std::optional<uint32_t> Policy::worst_reached() const {
  std::map<uint32_t, uint32_t> closed;
  for (const auto& [to, dials] : dials_) {
    for (const auto& [from, ends] : dials) {
      const bool reached = std::any_of(ends.begin(), ends.end(), [](const AddressDial& one) {
        return one.end == DialEnd::reached;
      });
      if (reached || !holds_ranks(to) || !holds_ranks(from)) continue;
      ++closed[to];
      ++closed[from];
    }
  }
  std::optional<uint32_t> worst;
  for (const HostPlaces& places : placement_) {
    const auto mine = closed.find(places.host);
    if (mine != closed.end() && (!worst || mine->second >= closed[*worst])) worst = places.host;
  }
  return worst;
}

// In the first attempt that is the job's end, as with hosts that cannot be reached; later, a spare
// stands in for one of the hosts that do not reach each other, or networks that were cut may heal.
void Policy::proof_failed(Time now) {
  const std::string text = describe_proof();
  const std::optional<uint32_t> worst = worst_reached();
  close_proofs();
  dials_.clear();
  const bool first = attempts_started_ == 0;
  const bool again = !first && now + kProveAgain < gather_until_;
  say(again ? Say::Level::warning : Say::Level::error, text);
  if (!first && worst && take_spare(*worst, now)) {
    // It may be up, and would be no better in another's place.
    hosts_[*worst].spare = false;
    hosts_[*worst].retry.reset();
    stop_proving();
    return gather_on(now);
  }
  if (again) {
    proof_step_ = ProofStep::pausing;
    deadline_ = now + kProveAgain;
    return;
  }
  if (first) {
    cause_ = Cause{};
    cause_.kind = Cause::Kind::setup;
    cause_.code = kExitNoHosts;
    cause_.text = text;
  }
  finish_with_cause();
}

std::string Policy::describe_proof() const {
  std::vector<Unreached> unreached;
  std::string silent;
  for (const HostPlaces& places : placement_) {
    const HostState& host = hosts_[places.host];
    const std::string& name = job_.hosts[places.host].name;
    if (host.data) continue;
    const auto dials = dials_.find(places.host);
    if (!host.proof_error.empty()) {
      silent += (silent.empty() ? "" : "\n") + name + ": " + host.proof_error;
    } else if (host.proof_port != 0 && dials != dials_.end()) {
      unreached.push_back({name, host.addresses, host.proof_port, &dials->second});
    }
  }
  for (const auto& [id, request] : requests_) {
    if (request.kind != Request::open_proof) continue;
    silent += (silent.empty() ? "" : "\n") + job_.hosts[request.host].name +
              ": its agent did not tell its addresses within " +
              format_duration(kDialLimit + kProofMargin);
  }
  if (!silent.empty()) return silent;
  std::vector<std::string> names;
  for (const Host& host : job_.hosts) names.push_back(host.name);
  return describe_unreached(unreached, names, format_duration(kDialLimit));
}

// The address that the launcher's own connection to a host uses; for the launcher's machine, its
// own on the way to another.
std::string Policy::known_address(uint32_t host) const {
  if (!hosts_[host].address.empty()) return hosts_[host].address;
  for (const HostPlaces& places : placement_) {
    const std::string& own = hosts_[places.host].own_address;
    if (!own.empty()) return own;
  }
  return "";
}

// Without other machines there is nothing to reach but this one.
std::string Policy::data_address(uint32_t host) const {
  return hosts_[host].data ? hosts_[host].data->address : "127.0.0.1";
}

}  // namespace hvd
