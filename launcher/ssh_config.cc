#include "launcher/ssh_config.h"

#include <strings.h>

#include <algorithm>

namespace hvd {

namespace {

// As OpenSSH: deeper ones are an error, which it will tell.
constexpr int kDeepestInclude = 16;

bool is(const std::string& keyword, const char* name) {
  return strcasecmp(keyword.c_str(), name) == 0;
}

// The line's next word; '=' may stand after the first, quotes hold blanks.
std::string take_word(std::string_view& rest, bool keyword) {
  const std::string_view blanks = keyword ? " \t\r\f=" : " \t\r\f";
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\f"), rest.size()));
  std::string word;
  bool quoted = false;
  while (!rest.empty() && (quoted || blanks.find(rest.front()) == blanks.npos)) {
    if (rest.front() == '"') {
      quoted = !quoted;
    } else {
      word += rest.front();
    }
    rest.remove_prefix(1);
  }
  if (keyword) rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\f="), rest.size()));
  return word;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (true) {
    std::string word = take_word(text, false);
    if (word.empty() && text.empty()) return words;
    if (word.starts_with('#')) return words;
    if (!word.empty()) words.push_back(std::move(word));
  }
}

std::string_view trimmed_line(std::string_view line) {
  const size_t end = line.find_last_not_of(" \t\r\f");
  return line.substr(0, end == line.npos ? 0 : end + 1);
}

class Reader {
 public:
  Reader(const SshInclude& include, SshConfigText& config) : include_(include), config_(config) {}

  void file(const SshConfigFile& file, int depth) {
    std::string_view rest = file.text;
    for (int number = 1; !rest.empty(); ++number) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      line(rest.substr(0, end), file.path + " line " + std::to_string(number), depth);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }

 private:
  void line(std::string_view text, const std::string& place, int depth) {
    SshDirective directive;
    directive.keyword = take_word(text, true);
    if (directive.keyword.empty() || directive.keyword[0] == '#') return;
    directive.value = trimmed_line(text);
    directive.place = place;
    if (is(directive.keyword, "host")) {
      config_.blocks.push_back({words_of(text), {}});
    } else if (is(directive.keyword, "match")) {
      const auto words = words_of(text);
      const bool all = words.size() == 1 && is(words[0], "all");
      if (!all) beyond(directive);
      config_.blocks.push_back({});
    } else if (is(directive.keyword, "include")) {
      include(directive, depth);
    } else {
      if (is(directive.keyword, "canonicalizehostname")) beyond(directive);
      if (config_.blocks.empty()) config_.blocks.emplace_back();
      config_.blocks.back().directives.push_back(std::move(directive));
    }
  }

  // An included file begins inside the block of the line that includes it, and its own blocks end
  // with it.
  void include(const SshDirective& directive, int depth) {
    const bool fixed = directive.value.find_first_of("%$") == std::string::npos;
    if (!fixed || depth == kDeepestInclude) return beyond(directive);
    const SshBlock outer = config_.blocks.empty() ? SshBlock{} : config_.blocks.back();
    for (const std::string& pattern : words_of(directive.value)) {
      for (const SshConfigFile& found : include_(pattern)) {
        config_.blocks.push_back({outer.patterns, {}});
        const size_t first = config_.blocks.size();
        file(found, depth + 1);
        // Blocks inside a Host block hold for hosts of both.
        if (!outer.patterns.empty() && config_.blocks.size() > first) beyond(directive);
      }
    }
    config_.blocks.push_back({outer.patterns, {}});
  }

  void beyond(const SshDirective& directive) {
    if (config_.beyond.keyword.empty()) config_.beyond = directive;
  }

  const SshInclude& include_;
  SshConfigText& config_;
};

// Of several '*' only the last one can be held to more text, so time stays bounded.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, held = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      held = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++held;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

bool holds(const SshBlock& block, const std::string& host) {
  return block.patterns.empty() || matches_ssh_patterns(block.patterns, host);
}

// A HostName with %h in it.
std::string with_host(std::string_view value, const std::string& host) {
  std::string name;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string_view token = value.substr(i, 2);
    if (token == "%h") {
      name += host;
    } else if (token == "%%") {
      name += '%';
    } else {
      name += value[i];
      continue;
    }
    ++i;
  }
  return name;
}

}  // namespace

bool matches_ssh_patterns(const std::vector<std::string>& patterns, std::string_view host) {
  bool found = false;
  for (const std::string& pattern : patterns) {
    const bool negated = pattern.starts_with('!');
    if (!matches(std::string_view(pattern).substr(negated ? 1 : 0), host)) continue;
    if (negated) return false;
    found = true;
  }
  return found;
}

void add_ssh_config(const SshConfigFile& file, const SshInclude& include, SshConfigText& config) {
  // What an earlier file ended with is no block of this one's.
  config.blocks.emplace_back();
  Reader(include, config).file(file, 0);
}

SshConfigUse config_use(const SshConfigText& config, const std::string& host) {
  SshConfigUse use;
  bool own = !config.beyond.keyword.empty();
  use.touched = own;
  for (const SshBlock& block : config.blocks) {
    const bool here = holds(block, host);
    use.group += here ? '1' : '0';
    if (!here || block.directives.empty()) continue;
    use.touched = true;
    // ssh fills in most %h itself; a key file's is filled in by whoever opens it.
    own = own ||
          std::any_of(block.directives.begin(), block.directives.end(), [](const SshDirective& d) {
            return is(d.keyword, "hostname") ||
                   (d.value.find('%') != std::string::npos && !is(d.keyword, "identityfile"));
          });
  }
  if (own) use.group = host;
  return use;
}

std::vector<SshDirective> directives_for(const SshConfigText& config, const std::string& host) {
  std::vector<SshDirective> found;
  for (const SshBlock& block : config.blocks) {
    if (!holds(block, host)) continue;
    found.insert(found.end(), block.directives.begin(), block.directives.end());
  }
  for (SshDirective& one : found) {
    if (is(one.keyword, "hostname")) one.value = with_host(one.value, host);
  }
  return found;
}

bool mentions(const SshConfigText& config, const char* keyword) {
  return std::any_of(config.blocks.begin(), config.blocks.end(), [&](const SshBlock& block) {
    return std::any_of(
        block.directives.begin(), block.directives.end(),
        [&](const SshDirective& directive) { return is(directive.keyword, keyword); });
  });
}

}  // namespace hvd
