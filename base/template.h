// Text with {names} in it. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace hvd {

// "{name}" replaced for the names given; other text stays.
std::string fill_template(std::string_view text, const std::map<std::string, std::string>& values);

// Replaces every `what`, which is not empty, in the text; what was put in is not looked at again.
void replace_all(std::string& text, std::string_view what, const std::string& by);

}  // namespace hvd
