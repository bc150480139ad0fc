#include "comm/settings.h"

#include <charconv>
#include <cstdlib>

namespace hvd {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

template <class T>
Status read_number(const char* name, T& value) {
  const std::string text = variable(name);
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) return Ok{};
  return Error{std::string(name) + " is '" + text + "', which is not a number"};
}

Status read_duration(const char* name, std::optional<Duration>& value) {
  const std::string text = variable(name);
  if (text.empty()) return Ok{};
  const Result<Duration> duration = parse_duration(text);
  if (!duration) return Error{std::string(name) + ": " + duration.error().text};
  if (*duration <= Duration::zero()) return Error{std::string(name) + " must be above 0"};
  value = *duration;
  return Ok{};
}

}  // namespace

Result<Settings> settings_from_environment() {
  Settings settings;
  settings.agent_socket = variable("HVD_AGENT_SOCKET");
  settings.job = variable("HVD_JOB_ID");
  settings.checkpoint_dir = variable("HVD_CHECKPOINT_DIR");
  settings.resume_from = variable("HVD_RESUME_FROM");
  settings.backend = variable("HVD_BACKEND");
  Status status = Ok{};
  if (!settings.agent_socket.empty()) {
    status = read_number("HVD_RANK", settings.rank);
    if (status) status = read_number("HVD_ATTEMPT", settings.attempt);
  }
  uint64_t step = 0;
  if (status && !variable("HVD_RESUME_STEP").empty()) {
    status = read_number("HVD_RESUME_STEP", step);
    settings.resume_step = step;
  }
  std::optional<Duration> init_limit;
  if (status) status = read_duration("HVD_TIMEOUT", settings.limit);
  if (status) status = read_duration("HVD_INIT_TIMEOUT", init_limit);
  if (!status) return status.error();
  settings.init_limit = init_limit.value_or(settings.init_limit);
  if (!settings.backend.empty() && settings.backend != "ring" && settings.backend != "nccl") {
    return Error{"HVD_BACKEND is '" + settings.backend + "': expected ring or nccl"};
  }
  return settings;
}

}  // namespace hvd
