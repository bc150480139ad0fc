#include "supervisor/agent/environment.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>

#include "base/gpu_view.h"
#include "base/template.h"
#include "base/variables.h"
#include "supervisor/agent/own_addresses.h"

namespace hvd {

namespace {

using Environment = std::map<std::string, std::string, std::less<>>;

// A trailing '*' stands for any ending.
bool matches(std::string_view name, std::span<const std::string_view> patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view pattern) {
    if (pattern.back() != '*') return name == pattern;
    pattern.remove_suffix(1);
    return name.substr(0, pattern.size()) == pattern;
  });
}

constexpr auto kFromLogin =
    std::to_array<std::string_view>({"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_*", "MAIL",
                                     "KRB5CCNAME", "CUDA_VISIBLE_DEVICES"});
constexpr auto kFromLoginIfUnset = std::to_array<std::string_view>({"PATH", "LANG"});

// Names that a process can be given at all.
bool is_name(std::string_view name) {
  return !name.empty() && name.find('=') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

void put(Environment& out, std::string_view name, std::string_view value) {
  // A value ends at its first NUL for the process that gets it: better here than half way.
  if (is_name(name)) out.insert_or_assign(std::string(name), value.substr(0, value.find('\0')));
}

void add_forwarded(Environment& out, const Variables& forwarded) {
  for (const auto& [name, value] : forwarded) {
    if (travels(name)) put(out, name, value);
  }
}

void add_login(Environment& out, const std::vector<std::string>& login) {
  for (const std::string& word : login) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    const std::string_view name = std::string_view(word).substr(0, equals);
    const bool wanted = matches(name, kFromLogin) ||
                        (matches(name, kFromLoginIfUnset) && out.find(name) == out.end());
    if (wanted) put(out, name, std::string_view(word).substr(equals + 1));
  }
  if (out.find("PATH") == out.end()) out["PATH"] = "/usr/local/bin:/usr/bin:/bin";
}

// Sets a variable that has no meaning when it is empty.
void put_if_said(Environment& out, std::string_view name, const std::string& value) {
  if (!value.empty()) put(out, name, value);
}

// The rank's part of a view that is split.
std::vector<std::string> own_part(const std::vector<std::string>& view, uint32_t local_rank,
                                  uint32_t count) {
  const size_t first = std::min<size_t>(view.size(), size_t{local_rank} * count);
  const size_t last = std::min<size_t>(view.size(), first + count);
  return {view.begin() + static_cast<ptrdiff_t>(first),
          view.begin() + static_cast<ptrdiff_t>(last)};
}

void add_gpu(Environment& out, const StartAttempt& start, const Place& place, uint32_t devices) {
  const auto visible = out.find("CUDA_VISIBLE_DEVICES");
  const std::vector<std::string> view = gpu_view(
      visible == out.end() ? std::nullopt : std::optional<std::string>(visible->second), devices);
  if (!start.split_gpus) {
    if (place.local_rank < view.size()) put(out, "HVD_GPU", view[place.local_rank]);
    return;
  }
  const std::vector<std::string> own = own_part(view, place.local_rank, start.gpus_per_rank);
  put(out, "CUDA_VISIBLE_DEVICES", joined_gpus(own));
  if (!own.empty()) put(out, "HVD_GPU", own.front());
}

void add_own(Environment& out, const StartAttempt& start, const Place& place,
             const WorkerSurroundings& around) {
  put(out, "HVD_JOB_ID", around.job);
  put(out, "HVD_RANK", std::to_string(place.rank));
  put(out, "HVD_SIZE", std::to_string(start.size));
  put(out, "HVD_LOCAL_RANK", std::to_string(place.local_rank));
  put(out, "HVD_LOCAL_SIZE", std::to_string(start.places.size()));
  put(out, "HVD_CROSS_RANK", std::to_string(place.cross_rank));
  put(out, "HVD_CROSS_SIZE", std::to_string(place.cross_size));
  put(out, "HVD_HOST", around.host_name);
  put(out, "HVD_ATTEMPT", std::to_string(start.attempt));
  put(out, "HVD_AGENT_SOCKET", around.agent_socket);
  put(out, "HVD_REACHED_STEP", std::to_string(start.reached_step));
  put_if_said(out, "HVD_RESTART_REASON", start.restart_reason);
  if (start.previous_size > 0) put(out, "HVD_PREVIOUS_SIZE", std::to_string(start.previous_size));
  put_if_said(out, "HVD_CHECKPOINT_DIR", start.checkpoint_dir);
  put_if_said(out, "HVD_CHECKPOINT_EVERY", start.checkpoint_every);
  if (!start.resume_from.empty()) {
    put(out, "HVD_RESUME_FROM", start.resume_from);
    put(out, "HVD_RESUME_STEP", std::to_string(start.resume_step));
  }
}

void add_torch(Environment& out, const StartAttempt& start, const Place& place,
               const WorkerSurroundings& around) {
  put(out, "RANK", std::to_string(place.rank));
  put(out, "LOCAL_RANK", std::to_string(place.local_rank));
  put(out, "WORLD_SIZE", std::to_string(start.size));
  put(out, "LOCAL_WORLD_SIZE", std::to_string(start.places.size()));
  put(out, "GROUP_RANK", std::to_string(start.host_rank));
  put(out, "MASTER_ADDR", start.master_address);
  put(out, "MASTER_PORT", std::to_string(start.master_port));
  put(out, "TORCHELASTIC_RUN_ID", around.job);
  put(out, "TORCHELASTIC_RESTART_COUNT", std::to_string(start.attempt > 0 ? start.attempt - 1 : 0));
  put(out, "TORCHELASTIC_MAX_RESTARTS", std::to_string(start.max_restarts));
}

void add_horovod(Environment& out, const StartAttempt& start, const Place& place,
                 const WorkerSurroundings& around) {
  put(out, "HOROVOD_RANK", std::to_string(place.rank));
  put(out, "HOROVOD_SIZE", std::to_string(start.size));
  put(out, "HOROVOD_LOCAL_RANK", std::to_string(place.local_rank));
  put(out, "HOROVOD_LOCAL_SIZE", std::to_string(start.places.size()));
  put(out, "HOROVOD_CROSS_RANK", std::to_string(place.cross_rank));
  put(out, "HOROVOD_CROSS_SIZE", std::to_string(place.cross_size));
  put(out, "HOROVOD_HOSTNAME", around.host_name);
}

void add_system(Environment& out, const StartAttempt& start, const Place& place,
                const WorkerSurroundings& around) {
  put(out, "PWD", around.workdir);
  put_if_said(out, "NOTIFY_SOCKET", around.notify_socket);
  if (start.stall_asked) put(out, "WATCHDOG_USEC", std::to_string(start.stall_ns / 1000));
  if (out.find("OMP_NUM_THREADS") == out.end()) {
    const size_t share =
        around.cores / std::max<size_t>({1, start.machine_size, start.places.size()});
    put(out, "OMP_NUM_THREADS", std::to_string(std::max<size_t>(1, share)));
  }
  // A program that knows it writes into a pipe would hold its lines back for minutes.
  if (out.find("PYTHONUNBUFFERED") == out.end()) put(out, "PYTHONUNBUFFERED", "1");
  add_gpu(out, start, place, around.devices);
}

// The card that was proven to reach the other hosts. Who set one of these knows better.
void add_card(Environment& out, const StartAttempt& start, const WorkerSurroundings& around) {
  if (start.data_card.empty()) return;
  out.emplace("NCCL_SOCKET_IFNAME", nccl_card(start.data_card, around.cards));
  out.emplace("GLOO_SOCKET_IFNAME", start.data_card);
  out.emplace("HOROVOD_GLOO_IFACE", start.data_card);
}

}  // namespace

std::vector<std::string> compose_environment(const StartAttempt& start, const Place& place,
                                             const WorkerSurroundings& around) {
  Environment out;
  add_forwarded(out, start.forwarded);
  add_login(out, around.login);
  for (const auto& [name, value] : start.set) put(out, name, value);
  add_own(out, start, place, around);
  add_torch(out, start, place, around);
  add_horovod(out, start, place, around);
  add_system(out, start, place, around);
  add_card(out, start, around);
  std::vector<std::string> words;
  words.reserve(out.size());
  for (const auto& [name, value] : out) words.push_back(name + "=" + value);
  return words;
}

std::map<std::string, std::string> substitutes(const StartAttempt& start, const Place& place,
                                               const std::string& host_name) {
  const bool resumed = !start.resume_from.empty();
  return {{"rank", std::to_string(place.rank)},
          {"local_rank", std::to_string(place.local_rank)},
          {"size", std::to_string(start.size)},
          {"host", host_name},
          {"attempt", std::to_string(start.attempt)},
          {"resume_from", start.resume_from},
          {"resume_step", resumed ? std::to_string(start.resume_step) : ""}};
}

std::vector<std::string> compose_arguments(const StartAttempt& start, const Place& place,
                                           const std::string& host_name) {
  if (!start.substitute) return start.argv;
  const auto values = substitutes(start, place, host_name);
  std::vector<std::string> argv = start.argv;
  for (size_t i = 1; i < argv.size(); ++i) argv[i] = fill_template(argv[i], values);
  return argv;
}

std::string value_of(const std::vector<std::string>& environment, std::string_view name) {
  for (const std::string& word : environment) {
    if (word.size() > name.size() && word[name.size()] == '=' &&
        std::string_view(word).substr(0, name.size()) == name) {
      return word.substr(name.size() + 1);
    }
  }
  return "";
}

}  // namespace hvd
