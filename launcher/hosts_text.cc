// Host files in the plain text that mpirun and horovodrun read, and the choice between that and
// TOML.
#include <utility>

#include "launcher/host_spec.h"
#include "launcher/hosts.h"
#include "launcher/suggest.h"

namespace hvd {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

struct Word {
  std::string_view text;
  size_t column = 0;  // of its first character, from 1
};

size_t characters(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

// The words of a line without its comment; '=' is a word of its own, whatever blanks are around it.
std::vector<Word> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<Word> words;
  for (size_t i = 0; i < line.size();) {
    constexpr std::string_view kBlank = " \t\r\v\f";
    if (kBlank.find(line[i]) != std::string_view::npos) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    if (line[i] != '=') {
      while (end < line.size() && line[end] != '=' &&
             kBlank.find(line[end]) == std::string_view::npos) {
        ++end;
      }
    }
    words.push_back({line.substr(i, end - i), characters(line.substr(0, i)) + 1});
    i = end;
  }
  return words;
}

Status read_max_slots(std::string_view text, HostSpec& spec) {
  const auto slots = parse_count(text, 1, kMostSlots);
  if (!slots) {
    return Error{"max_slots " + in_quotes(text) + ": expected a whole number from 1 to " +
                 std::to_string(kMostSlots)};
  }
  spec.max_slots = static_cast<uint32_t>(*slots);
  return Ok{};
}

// `key = value` pairs after the host.
Status read_keys(const std::vector<Word>& words, const std::string& line_at, HostSpec& spec) {
  for (size_t i = 1; i < words.size(); i += 3) {
    const std::string_view key = words[i].text;
    const std::string at = line_at + ":" + std::to_string(words[i].column) + ": ";
    if (key != "slots" && key != "max_slots" && key != "max-slots") {
      return Error{at + "unknown word " + in_quotes(key) + " after the host" +
                   suggestion(key, {"slots", "max_slots"})};
    }
    if (i + 2 >= words.size() || words[i + 1].text != "=") {
      return Error{at + std::string(key) + " without a number: expected " + std::string(key) +
                   "=4"};
    }
    const bool limit = key != "slots";
    if (limit ? spec.max_slots.has_value() : spec.slots || spec.slots_auto) {
      return Error{at + std::string(key) + " are given twice"};
    }
    const std::string_view value = words[i + 2].text;
    const Status status = limit ? read_max_slots(value, spec) : parse_slots(value, spec);
    if (!status) {
      return Error{line_at + ":" + std::to_string(words[i + 2].column) + ": " +
                   status.error().text};
    }
  }
  const std::string wrong = slots_above_limit(spec.slots.value_or(1), spec.max_slots.value_or(0));
  return wrong.empty() ? Status(Ok{}) : Error{line_at + ":1: " + wrong};
}

Status read_line(std::string_view line, const std::string& line_at, std::vector<Host>& hosts) {
  const std::vector<Word> words = words_of(line);
  if (words.empty()) return Ok{};
  const std::string at = line_at + ":" + std::to_string(words[0].column);
  auto spec = parse_host_spec(words[0].text);
  if (!spec) return Error{at + ": " + spec.error().text};
  if (const Status status = read_keys(words, line_at, *spec); !status) return status;
  add_hosts(*spec, at, hosts);
  return Ok{};
}

}  // namespace

bool looks_like_toml(std::string_view text, const std::string& path) {
  if (path.ends_with(".toml")) return true;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::vector<Word> words = words_of(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (words.empty()) continue;
    // A table's header, or a key and its value; "[fd00::2]:2" and "h1 slots=2" are neither.
    const bool header = words[0].text.starts_with("[[") ||
                        (words[0].text.starts_with('[') && words[0].text.ends_with(']') &&
                         words[0].text.find(':') == std::string_view::npos &&
                         words[0].text.find_first_of("0123456789") == std::string_view::npos);
    return header || (words.size() > 1 && words[1].text == "=");
  }
  return false;
}

Result<HostFile> parse_hosts_text(std::string_view text, const std::string& path) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  HostFile file;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const Status status =
        read_line(text.substr(0, end), path + ":" + std::to_string(number), file.hosts);
    if (!status) return status.error();
    if (file.hosts.size() > kMostHosts) {
      return Error{path + ":" + std::to_string(number) + ":1: more than " +
                   std::to_string(kMostHosts) + " hosts"};
    }
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  if (file.hosts.empty()) return Error{path + ":1:1: no host is named here"};
  if (const Status status = check_no_duplicates(file.hosts); !status) return status.error();
  return file;
}

}  // namespace hvd
