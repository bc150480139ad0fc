// From what the user wrote to the list of hosts: TOML and plain-text host files, lists on the
// command line. All TOML syntax is known here and in job_file only.
//
// Errors are one sentence that begins with the place, "hosts.toml:3:1: ...", lines and columns
// counted from 1 (columns in characters). Nothing is ignored: an unknown key, a wrong type, a value
// out of range or a host named twice is an error. No name is looked up in the network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "supervisor/host.h"

namespace hvd {

inline constexpr size_t kLongestHostFile = 4u << 20;  // bytes

// One option as a [job] table or the command line gave it.
struct Setting {
  enum class Type { word, text, whole, real, flag };
  std::string name;                 // long name without dashes: "checkpoint-dir"
  std::vector<std::string> values;  // as the command line would have them; a flag: "true", "false"
  Type type = Type::word;           // word: from the command line, to be read as what is expected
  std::string source;               // "hosts.toml:7:1"; empty: the command line
};

struct HostFile {
  std::vector<Host> hosts;   // in the order of the file, ranges expanded
  std::vector<Setting> job;  // the [job] table in the order of the file
};

// Reads a host file of at most kLongestHostFile bytes, TOML or plain text (`name slots=4`,
// `name:4`, `user@name`, `#` comments). A file whose name ends in .toml, or whose first line is
// TOML, is TOML. At least one host is there, and none twice.
Result<HostFile> parse_host_file(const std::string& path);

// The same from text already read; `path` is for messages.
Result<HostFile> parse_hosts_toml(std::string_view text, const std::string& path);
Result<HostFile> parse_hosts_text(std::string_view text, const std::string& path);
bool looks_like_toml(std::string_view text, const std::string& path);

// "h1:4,user@h2:4,[fd00::2]:2,gpu[01-16]:8". `source` is for messages: "-H".
Result<std::vector<Host>> parse_host_list(std::string_view list, const std::string& source);

// Whether the word after -H is a file or a list of hosts: with '/' or ending in .toml, .txt, .hosts
// a file; with ',' or ':' a list; any other is a file if one of that name exists.
enum class HostWord { file, list, file_by_chance };
HostWord kind_of_host_word(const std::string& word);

// The error names both places.
Status check_no_duplicates(const std::vector<Host>& hosts);

// What is known of the machine the launcher runs on, without asking the network.
struct Machine {
  std::string hostname;  // gethostname
  std::string user;      // USER of the environment
  uint32_t gpus = 0;     // that this process sees
  uint32_t cores = 1;    // this process may use
};
Machine this_machine();

// Sets Host::local for hosts that are this machine: named localhost, 127.0.0.1, ::1 or its own
// hostname, with no user, port or address that says otherwise.
void mark_local(std::vector<Host>& hosts, const Machine& machine);

}  // namespace hvd
