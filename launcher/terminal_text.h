// Text from elsewhere on its way to the user's terminal.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

// Each line of `text` with `prefix` in front and a newline behind, control characters but tab
// and bytes that are no UTF-8 written as \xNN, so that nothing remote can steer the terminal.
std::string terminal_lines(std::string_view prefix, std::string_view text);

}  // namespace hvd
