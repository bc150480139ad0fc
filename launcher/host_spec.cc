#include "launcher/host_spec.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace hvd {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_alnum(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

Status check_characters(const std::string& what, const std::string& text, std::string_view others,
                        const std::string& expected) {
  const std::string subject = what + " " + in_quotes(text);
  if (text.empty()) return Error{what + " is empty: expected " + expected};
  if (text.size() > 253) return Error{subject + " is longer than 253 characters"};
  if (text[0] == '-' || text[0] == '.') {
    return Error{subject + " begins with '" + text[0] + "': expected " + expected};
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_alnum(text[i]) || others.find(text[i]) != std::string_view::npos) continue;
    return Error{subject + " holds " + in_quotes(text.substr(i, 1)) + ": expected " + expected};
  }
  return Ok{};
}

// One part of a bracket: "01-16" or "7", as texts.
Result<std::vector<std::string>> expand_part(std::string_view part, std::string_view pattern) {
  const Error malformed{"range " + in_quotes(part) + " in " + in_quotes(pattern) +
                        " is not one: expected numbers such as [1-8], [01-16] or [1,3,5-7]"};
  const size_t dash = part.find('-');
  const std::string first(part.substr(0, dash));
  const std::string last(dash == std::string_view::npos ? part : part.substr(dash + 1));
  const auto number = [](const std::string& text) {
    return !text.empty() && text.size() <= 9 && std::all_of(text.begin(), text.end(), is_digit);
  };
  if (!number(first) || !number(last)) return malformed;
  const unsigned long low = std::stoul(first), high = std::stoul(last);
  if (low > high) {
    return Error{"range " + in_quotes(part) + " in " + in_quotes(pattern) + " runs backwards"};
  }
  if (high - low >= kMostHosts) {
    return Error{"range " + in_quotes(part) + " in " + in_quotes(pattern) + " has more than " +
                 std::to_string(kMostHosts) + " hosts"};
  }
  const size_t width = first[0] == '0' ? first.size() : 0;
  std::vector<std::string> numbers;
  for (unsigned long n = low; n <= high; ++n) {
    std::string text = std::to_string(n);
    if (text.size() < width) text.insert(0, width - text.size(), '0');
    numbers.push_back(std::move(text));
  }
  return numbers;
}

// All numbers of one bracket's inside, in the order written.
Result<std::vector<std::string>> expand_bracket(std::string_view inside, std::string_view pattern) {
  std::vector<std::string> numbers;
  while (true) {
    const size_t comma = inside.find(',');
    auto part = expand_part(inside.substr(0, comma), pattern);
    if (!part) return part;
    numbers.insert(numbers.end(), part->begin(), part->end());
    if (comma == std::string_view::npos) return numbers;
    inside.remove_prefix(comma + 1);
  }
}

struct NameAndSlots {
  std::string_view name;
  std::optional<std::string_view> slots;
};

// Splits "name:4" or "[fd00::2]:4"; colons inside brackets belong to the name.
Result<NameAndSlots> split_slots(std::string_view text) {
  size_t colon = std::string_view::npos;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']') --depth;
    if (text[i] != ':' || depth > 0) continue;
    if (colon != std::string_view::npos) {
      return Error{in_quotes(text) +
                   " is ambiguous: expected an IPv6 address in brackets, such as [fd00::2]:2"};
    }
    colon = i;
  }
  if (colon == std::string_view::npos) return NameAndSlots{text, std::nullopt};
  return NameAndSlots{text.substr(0, colon), text.substr(colon + 1)};
}

// The address in "[fd00::2]", if that is what this is.
std::optional<std::string> bracketed_ipv6(std::string_view text) {
  if (text.size() < 4 || text.front() != '[' || text.back() != ']') return std::nullopt;
  std::string inside(text.substr(1, text.size() - 2));
  if (inside.find(':') == std::string::npos) return std::nullopt;
  return inside;
}

}  // namespace

std::optional<uint64_t> parse_count(std::string_view text, uint64_t least, uint64_t most) {
  constexpr size_t kMostDigits = 18;
  if (text.empty() || text.size() > kMostDigits) return std::nullopt;
  if (text.size() > 1 && text[0] == '0') return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    if (!is_digit(c)) return std::nullopt;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  if (value < least || value > most) return std::nullopt;
  return value;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out = "'";
  const bool cut = text.size() > kLongest;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out + (cut ? "...'" : "'");
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || text.size() - i < length) return false;
    uint32_t point = length == 1 ? first : first & (0xff >> (length + 1));
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3f);
    }
    // Longer than needed, a surrogate, or past the end of Unicode.
    if ((length == 3 && point < 0x800) || (length == 4 && point < 0x10000) || point > 0x10ffff ||
        (point >= 0xd800 && point <= 0xdfff)) {
      return false;
    }
    i += length;
  }
  return true;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\v\f";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

bool is_ipv6(const std::string& text) {
  const size_t zone = text.find('%');
  const std::string address = text.substr(0, zone);
  in6_addr parsed;
  // inet_pton would take what stands before a zero byte for all.
  if (address.find('\0') != std::string::npos) return false;
  if (inet_pton(AF_INET6, address.c_str(), &parsed) != 1) return false;
  if (zone == std::string::npos) return true;
  const std::string interface = text.substr(zone + 1);
  return !interface.empty() && interface.size() < 32 &&
         std::all_of(interface.begin(), interface.end(),
                     [](char c) { return is_alnum(c) || c == '.' || c == '-' || c == '_'; });
}

std::string host_identity(const std::string& name, uint16_t port) {
  std::string identity = name;
  in6_addr parsed;
  if (inet_pton(AF_INET6, name.c_str(), &parsed) == 1) {
    char shortest[INET6_ADDRSTRLEN];
    identity = inet_ntop(AF_INET6, &parsed, shortest, sizeof shortest);
  }
  for (char& c : identity) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return identity + " " + std::to_string(port);
}

Status check_host_name(const std::string& name) {
  if (is_ipv6(name)) return Ok{};
  return check_characters("host name", name, ".-_", "letters, digits, '.', '-' and '_'");
}

Status check_user(const std::string& user) {
  return check_characters("user", user, ".-_+@", "letters, digits, '.', '-', '_', '+' and '@'");
}

Status check_variable_name(const std::string& name) {
  if (name.empty()) return Error{"the name of a variable is empty"};
  const auto strange = [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '\x7f' || c == '=' || c == '"' || c == '\'';
  };
  if (std::any_of(name.begin(), name.end(), strange)) {
    return Error{"the name of a variable cannot be " + in_quotes(name) +
                 ": expected one without blanks, quotes, '=' and control characters"};
  }
  return Ok{};
}

Status check_variable_word(const std::string& word) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  if (check_variable_name(name).ok() && word.find('\0') == std::string::npos) return Ok{};
  const std::string shown = in_quotes(name + (equals == std::string::npos ? "" : "=..."));
  if (name.starts_with("export ")) {
    return Error{shown + ": expected NAME=VALUE or NAME without export: no shell reads this"};
  }
  return Error{shown + ": expected NAME=VALUE or NAME, the name without blanks and quotes"};
}

Result<std::vector<std::string>> expand_ranges(std::string_view pattern) {
  if (const auto address = bracketed_ipv6(pattern)) return std::vector<std::string>{*address};
  std::vector<std::string> names = {""};
  while (!pattern.empty()) {
    const size_t open = pattern.find('[');
    for (std::string& name : names) name += pattern.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = pattern.find(']', open);
    if (close == std::string_view::npos) {
      return Error{"'[' without ']' in " + in_quotes(pattern)};
    }
    const auto numbers = expand_bracket(pattern.substr(open + 1, close - open - 1), pattern);
    if (!numbers) return numbers.error();
    if (names.size() * numbers->size() > kMostHosts) {
      return Error{in_quotes(pattern) + " names more than " + std::to_string(kMostHosts) +
                   " hosts"};
    }
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& number : *numbers) longer.push_back(name + number);
    }
    names = std::move(longer);
    pattern.remove_prefix(close + 1);
  }
  return names;
}

Status parse_slots(std::string_view text, HostSpec& spec) {
  if (text == "auto") {
    spec.slots_auto = true;
    return Ok{};
  }
  const auto slots = parse_count(text, 1, kMostSlots);
  if (!slots) {
    return Error{"slots " + in_quotes(text) + ": expected a whole number from 1 to " +
                 std::to_string(kMostSlots) + ", or auto"};
  }
  spec.slots = static_cast<uint32_t>(*slots);
  return Ok{};
}

std::string slots_above_limit(uint32_t slots, uint32_t max_slots) {
  if (max_slots == 0 || slots <= max_slots) return "";
  return std::to_string(slots) + " slots are above the host's max_slots, " +
         std::to_string(max_slots);
}

Result<HostSpec> parse_host_spec(std::string_view text) {
  HostSpec spec;
  const size_t at = text.rfind('@');
  if (at != std::string_view::npos) {
    spec.user = text.substr(0, at);
    if (const Status status = check_user(spec.user); !status) return status.error();
    text.remove_prefix(at + 1);
  }
  const auto split = split_slots(text);
  if (!split) return split.error();
  if (split->slots) {
    if (const Status status = parse_slots(*split->slots, spec); !status) return status.error();
  }
  if (const auto address = bracketed_ipv6(split->name)) {
    if (!is_ipv6(*address)) return Error{in_quotes(split->name) + " is not an IPv6 address"};
    spec.names = {*address};
    return spec;
  }
  auto names = expand_ranges(split->name);
  if (!names) return names.error();
  for (const std::string& name : *names) {
    if (const Status status = check_host_name(name); !status) return status.error();
  }
  spec.names = std::move(*names);
  return spec;
}

std::vector<std::string_view> split_host_list(std::string_view list) {
  std::vector<std::string_view> words;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') ++depth;
    if (i < list.size() && list[i] == ']') --depth;
    if (i < list.size() && (list[i] != ',' || depth > 0)) continue;
    words.push_back(trimmed(list.substr(begin, i - begin)));
    begin = i + 1;
  }
  return words;
}

void add_hosts(const HostSpec& spec, const std::string& source, std::vector<Host>& hosts) {
  for (const std::string& name : spec.names) {
    Host host;
    host.name = host.address = name;
    host.user = spec.user;
    host.slots = spec.slots.value_or(1);
    host.slots_given = spec.slots.has_value();
    host.slots_auto = spec.slots_auto;
    host.max_slots = spec.max_slots.value_or(0);
    host.source = source;
    hosts.push_back(std::move(host));
  }
}

}  // namespace hvd
