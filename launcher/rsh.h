// The command that --rsh gives: which program reaches a host, and with what words. Pure; no shell
// reads any of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "supervisor/host.h"

namespace hvd {

// Cuts a command into words at blanks. 'x y' and "x y" are one word or a part of one, in "" and
// outside quotes a backslash takes the next character as it is; nothing else has a meaning. The
// error says what is wrong: a quote without its end, no word, an unknown {name}.
Result<std::vector<std::string>> parse_rsh(std::string_view command);

// The words for one host: {host} is its address, else its name; {user} its user, else `own_user`;
// {port} its port, else 22. Without {host} the host is the last word.
std::vector<std::string> fill_rsh(const std::vector<std::string>& words, const Host& host,
                                  const std::string& own_user);

}  // namespace hvd
