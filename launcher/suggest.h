// The known word nearest to a mistyped one, for errors that name it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hvd {

// ": did you mean 'slots'?", or without a near word ": expected one of a, b, c". Of many known
// words the two nearest are named, and where all of them stand.
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

// The known word at most two typing errors away, or an empty one.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace hvd
