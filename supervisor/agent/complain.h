// The agent's last resort for words: its standard error, which reaches the user through the
// launcher while the connection lives.
#pragma once

#include <string>

namespace hvd {

// Writes "hvdlaunch agent on HOSTNAME: TEXT". Dropped when nobody takes it within a tenth of a
// second: a reader that hangs must not hold up a kill.
void complain(const std::string& text);

}  // namespace hvd
