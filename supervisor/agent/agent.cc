#include "supervisor/agent/agent.h"

#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "supervisor/agent/agent_loop.h"
#include "supervisor/agent/attach_door.h"
#include "supervisor/agent/complain.h"
#include "supervisor/agent/keeper.h"

namespace hvd {

namespace {

// Bounded, because it becomes part of a socket's name.
constexpr size_t kLongestJob = 64;

bool is_job_name(std::string_view name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  return !name.empty() && name.size() <= kLongestJob &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

std::optional<uint32_t> parse_index(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<AgentOptions> parse(const std::vector<std::string>& arguments) {
  AgentOptions options;
  std::optional<uint32_t> host;
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    if (arguments[i] == "--job") options.job = arguments[i + 1];
    if (arguments[i] == "--host") host = parse_index(arguments[i + 1]);
  }
  options.attach = arguments.size() == 5 && arguments[4] == "--attach";
  if (arguments.size() != (options.attach ? 5 : 4) || !is_job_name(options.job) || !host) {
    return Error{
        "it is started by hvdlaunch, as `hvdlaunch agent --job JOB --host INDEX [--attach]`"};
  }
  options.host = *host;
  return options;
}

// Files and terminals cannot be the launcher's end of a conversation, nor can files be polled.
bool is_wire(int fd) {
  struct stat st;
  return fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

// Of programs that start agents, srun passes on at once only what is written to a terminal that it
// made for that, which changes no byte.
bool is_wire_out(int fd) {
  return is_wire(fd) || isatty(fd) == 1;
}

}  // namespace

int agent_main(const std::vector<std::string>& arguments) {
  const Result<AgentOptions> options = parse(arguments);
  if (!options) {
    complain(options.error().text);
    return 2;
  }
  if (!is_wire(STDIN_FILENO) || !is_wire_out(STDOUT_FILENO)) {
    complain("its standard input and output must be pipes or sockets to the launcher");
    return 2;
  }
  if (options->attach) return attach_main(options->job, options->host);
  return keep(options->job, options->host, [&](AgentSeat seat) {
    AgentLoop loop(*options, std::move(seat));
    return loop.run();
  });
}

}  // namespace hvd
