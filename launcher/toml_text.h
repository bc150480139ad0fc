// TOML read strictly: every value with its place in the file and the type it must have. The one
// place where toml++ is called and its exceptions end; included by host_table, hosts_toml and
// job_file only.
#pragma once

namespace hvd {
// toml++ asserts some promises that text from outside can break ("[" at the end of a line): an
// error, not the end of the process.
[[noreturn]] void toml_promise_broken();
}  // namespace hvd

// With NDEBUG toml++ would let the compiler assume the same promises.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expression) ((expression) ? static_cast<void>(0) : ::hvd::toml_promise_broken())
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/message.h"

namespace hvd {

// Errors begin with "path:line:column: ". Text nested deeper than a parser's stack can bear is
// refused before it is parsed.
Result<toml::table> parse_toml(std::string_view text, const std::string& path);

// "path:line:column".
std::string place_of(const toml::source_region& source, const std::string& path);

// One key and its value.
struct TomlEntry {
  std::string key;
  std::string key_at;    // place of the key
  std::string value_at;  // place of the value
  std::string path;      // the file
  const toml::node* value = nullptr;
};
// In the order of the file, whatever order the table keeps.
std::vector<TomlEntry> entries_of(const toml::table& table, const std::string& path);

// "a string", "an integer", ...
std::string type_of(const toml::node& node);

// "path:line:column: KEY expects EXPECTED, not a string".
Error type_error(const TomlEntry& entry, const std::string& expected);

Result<std::string> read_text(const TomlEntry& entry);
Result<bool> read_flag(const TomlEntry& entry);
// A whole number between `least` and `most`.
Result<int64_t> read_whole(const TomlEntry& entry, int64_t least, int64_t most);
Result<std::vector<std::string>> read_texts(const TomlEntry& entry);
// A table of strings: { NAME = "value" }.
Result<Variables> read_variables(const TomlEntry& entry);

}  // namespace hvd
