#include "cli/env_file.h"

#include <algorithm>
#include <utility>

#include "base/fd.h"
#include "launcher/host_spec.h"

namespace hvd {

namespace {
constexpr size_t kLongestEnvFile = 16u << 20;  // bytes
}  // namespace

Result<std::vector<VariableWord>> read_env_file(const std::string& path) {
  const auto text = read_file(path, kLongestEnvFile);
  if (!text) return text.error();
  return parse_env_file(*text, path);
}

Result<std::vector<VariableWord>> parse_env_file(std::string_view rest, const std::string& path) {
  std::vector<VariableWord> words;
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (line.empty() || line[0] == '#') continue;
    VariableWord word{std::string(line), path + ":" + std::to_string(number) + ":"};
    if (const Status status = check_variable_word(word.text); !status) {
      return Error{word.place + " " + status.error().text};
    }
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace hvd
