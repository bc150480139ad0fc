// --env-file: variables for the ranks, one to a line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hvd {

// A variable as -x takes it: NAME=VALUE or NAME.
struct VariableWord {
  std::string text;
  std::string place;  // "--env", "hosts.toml:9:1: env" or "FILE:3:": begins every error about it
};

// The lines as -x takes them, NAME=VALUE (everything after the first '=' to the end of the line,
// nothing quoted or expanded) or NAME. Empty lines and lines that begin with '#' are left out. An
// error has the file and the line.
Result<std::vector<VariableWord>> read_env_file(const std::string& path);

// The same from text already read; `path` is for messages.
Result<std::vector<VariableWord>> parse_env_file(std::string_view text, const std::string& path);

}  // namespace hvd
