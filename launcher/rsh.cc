#include "launcher/rsh.h"

#include <algorithm>

#include "base/template.h"
#include "launcher/host_spec.h"

namespace hvd {

namespace {

constexpr std::string_view kBlanks = " \t\n";
constexpr std::string_view kHost = "{host}";

// Takes one word from the front of `rest`; false if a quote or backslash lacks what belongs to it.
bool take_word(std::string_view& rest, std::string& word) {
  char quote = '\0';
  while (!rest.empty()) {
    const char c = rest.front();
    if (quote == '\0' && kBlanks.find(c) != kBlanks.npos) return true;
    rest.remove_prefix(1);
    if (c == quote) {
      quote = '\0';
    } else if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && quote != '\'') {
      if (rest.empty()) return false;
      word += rest.front();
      rest.remove_prefix(1);
    } else {
      word += c;
    }
  }
  return quote == '\0';
}

// A misspelt place must not reach the program as it stands.
Status check_places(const std::string& word) {
  for (size_t open = word.find('{'); open != word.npos; open = word.find('{', open + 1)) {
    const std::string_view rest = std::string_view(word).substr(open);
    if (rest.starts_with(kHost) || rest.starts_with("{user}") || rest.starts_with("{port}")) {
      continue;
    }
    return Error{"expected {host}, {user} or {port} in braces"};
  }
  return Ok{};
}

}  // namespace

Result<std::vector<std::string>> parse_rsh(std::string_view command) {
  std::vector<std::string> words;
  while (true) {
    command.remove_prefix(std::min(command.find_first_not_of(kBlanks), command.size()));
    if (command.empty()) break;
    std::string& word = words.emplace_back();
    if (!take_word(command, word)) return Error{"expected an end to its quotes"};
    if (const Status status = check_places(word); !status) return status.error();
  }
  if (words.empty() || words[0].empty()) {
    return Error{"expected a command such as 'kubectl exec -i {host} --'"};
  }
  return words;
}

std::vector<std::string> fill_rsh(const std::vector<std::string>& words, const Host& host,
                                  const std::string& own_user) {
  const std::string& address = host.address.empty() ? host.name : host.address;
  std::vector<std::string> filled = words;
  bool named = false;
  for (std::string& word : filled) {
    named = named || word.find(kHost) != word.npos;
    replace_all(word, "{user}", host.user.empty() ? own_user : host.user);
    replace_all(word, "{port}", std::to_string(host.port == 0 ? 22 : host.port));
    replace_all(word, kHost, address);
  }
  if (!named) filled.push_back(address);
  return filled;
}

}  // namespace hvd
