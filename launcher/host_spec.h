// How one host is written: the rules for names, users and addresses, ranges in names, and the short
// form `user@name:slots`. Pure; used for lists on the command line, plain host files, discovery
// output and TOML host files alike. Errors are sentences without a place; callers put it in front.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "supervisor/host.h"

namespace hvd {

inline constexpr uint32_t kMostSlots = 65'535;  // of one host
inline constexpr size_t kMostHosts = 16'384;    // of one job

// What `user@gpu[01-04]:8` says. The user may be empty; slots are absent if none were written.
struct HostSpec {
  std::string user;
  std::vector<std::string> names;  // ranges expanded, IPv6 without brackets
  std::optional<uint32_t> slots;
  bool slots_auto = false;
  std::optional<uint32_t> max_slots;
};
Result<HostSpec> parse_host_spec(std::string_view text);

// The entries of a list: split at commas that are not inside brackets, without blanks around them.
std::vector<std::string_view> split_host_list(std::string_view list);

// Appends the spec's hosts; `source` is where it stands.
void add_hosts(const HostSpec& spec, const std::string& source, std::vector<Host>& hosts);

// Reads "4" or "auto" into the spec's slots.
Status parse_slots(std::string_view text, HostSpec& spec);

// Why a host cannot have so many slots, or nothing; a limit of 0 is none.
std::string slots_above_limit(uint32_t slots, uint32_t max_slots);

// "gpu[01-03,07]" -> gpu01 gpu02 gpu03 gpu07. A bound with a leading zero sets the width; several
// brackets multiply, the last one running fastest. A bracketed IPv6 address loses its brackets.
Result<std::vector<std::string>> expand_ranges(std::string_view pattern);

// A name, IPv4 or bare IPv6 address that can be given to any program without being taken for an
// option, a path or a shell word.
Status check_host_name(const std::string& name);
Status check_user(const std::string& user);

// A variable's name that somebody may have meant: not empty, without '=', blanks, quotes and
// control characters. Shells want less, and execve takes more.
Status check_variable_name(const std::string& name);
// NAME or NAME=VALUE. The error names no value.
Status check_variable_word(const std::string& word);

// "fd00::2" or "fe80::1%eth0"; no brackets.
bool is_ipv6(const std::string& text);

// Two hosts are the same if this is the same: the name in lower case, IPv6 in its shortest form,
// and the port.
std::string host_identity(const std::string& name, uint16_t port);

// Decimal digits without a sign or leading zero, between `least` and `most`.
std::optional<uint64_t> parse_count(std::string_view text, uint64_t least, uint64_t most);

// Text as it can be shown inside a message: quoted, control characters and other bytes that are not
// printable ASCII or UTF-8 as \xNN, cut at 80 bytes.
std::string in_quotes(std::string_view text);

bool is_utf8(std::string_view text);

std::string_view trimmed(std::string_view text);

}  // namespace hvd
