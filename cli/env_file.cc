#include "cli/env_file.h"

#include <algorithm>

#include "base/fd.h"
#include "launcher/host_spec.h"

namespace hvd {

namespace {
constexpr size_t kLongestEnvFile = 16u << 20;  // bytes
}  // namespace

Result<std::vector<std::string>> read_env_file(const std::string& path) {
  const auto text = read_file(path, kLongestEnvFile);
  if (!text) return text.error();
  return parse_env_file(*text, path);
}

Result<std::vector<std::string>> parse_env_file(std::string_view rest, const std::string& path) {
  std::vector<std::string> words;
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (line.empty() || line[0] == '#') continue;
    const bool name = check_variable_name(std::string(line.substr(0, line.find('=')))).ok();
    if (!name || line.find('\0') != std::string_view::npos) {
      return Error{path + ":" + std::to_string(number) + ": " + in_quotes(line) +
                   ": expected NAME=VALUE or NAME"};
    }
    words.emplace_back(line);
  }
  return words;
}

}  // namespace hvd
