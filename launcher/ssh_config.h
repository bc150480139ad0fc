// The text of the user's ssh configuration, as far as it must be understood to know which hosts it
// says anything about. What it says about a host is asked of OpenSSH itself (`ssh -G`), which takes
// milliseconds; hosts that no block touches need not be asked for, and hosts that the same blocks
// touch get the same answer. Pure: whoever reads the files gives their text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

struct SshDirective {
  std::string keyword;  // as written
  std::string value;
  std::string place;  // "~/.ssh/config line 3"
};

// Lines that hold together: those before the first Host, or those of one Host.
struct SshBlock {
  std::vector<std::string> patterns;  // empty: every host
  std::vector<SshDirective> directives;
};

struct SshConfigText {
  std::vector<SshBlock> blocks;
  // Something only OpenSSH can judge for a host: a Match, an Include that depends on it. Empty
  // keyword: there is none.
  SshDirective beyond;
};

struct SshConfigFile {
  std::string path;
  std::string text;
};
// Gives the files that an Include names.
using SshInclude = std::function<std::vector<SshConfigFile>(const std::string& pattern)>;

// Adds one file. Lines that make no sense are kept: OpenSSH will say so.
void add_ssh_config(const SshConfigFile& file, const SshInclude& include, SshConfigText& config);

// What the configuration has to say about a host, called by the name the user gave it.
struct SshConfigUse {
  bool touched = false;  // a directive holds for it, or may
  std::string group;     // hosts of one group get the same answer, but for their own name
};
SshConfigUse config_use(const SshConfigText& config, const std::string& host);

// The directives that hold for a host, in the order in which the first one counts, for machines
// without OpenSSH; the host stands in HostName for %h. Nothing of `beyond` is in it.
std::vector<SshDirective> directives_for(const SshConfigText& config, const std::string& host);

// Whether any block, for whatever host, has a directive of that name.
bool mentions(const SshConfigText& config, const char* keyword);

// A pattern list of Host: '*' and '?' match, '!' excludes.
bool matches_ssh_patterns(const std::vector<std::string>& patterns, std::string_view host);

}  // namespace hvd
