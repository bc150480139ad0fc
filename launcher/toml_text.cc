#include "launcher/toml_text.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <sstream>
#include <utility>

#include "launcher/host_spec.h"
#include "launcher/terminal_text.h"

namespace hvd {

namespace {

// Dots outside of strings and comments open a table each, and every table costs stack when it is
// parsed and when it is destroyed; toml++ bounds brackets by itself.
constexpr size_t kMostDotsInLine = 32;

// Walks over TOML text knowing what is a string, a comment or neither, and looks for a line with
// too many dots.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // "line:column: what is wrong", if something is.
  std::optional<std::string> find_mistake() {
    for (size_t i = 0; i < text_.size();) {
      const bool plain = quote_.empty() && !comment_;
      if (plain && text_[i] == '.' && ++dots_ > kMostDotsInLine) {
        return place() + "a key with more than " + std::to_string(kMostDotsInLine) + " dots";
      }
      for (size_t width = step(i); width > 0 && i < text_.size(); --width) pass(text_[i++]);
    }
    return std::nullopt;
  }

 private:
  std::string place() const { return std::to_string(line_) + ":" + std::to_string(column_) + ": "; }

  void pass(char c) {
    if (c == '\n') {
      ++line_;
      column_ = 1;
      dots_ = 0;
    } else if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) {
      ++column_;
    }
  }

  // Takes in what stands at `i` and returns how many bytes that is.
  size_t step(size_t i) {
    const char c = text_[i];
    // A string of one line that was never closed ends there: the parser will complain.
    if (c == '\n' && quote_.size() != 3) quote_ = {};
    if (c == '\n') comment_ = false;
    if (comment_) return 1;
    if (!quote_.empty()) return step_in_string(i);
    if (c == '#') comment_ = true;
    if (c != '"' && c != '\'') return 1;
    quote_ = text_.substr(i, text_.substr(i, 3) == std::string(3, c) ? 3 : 1);
    return quote_.size();
  }

  size_t step_in_string(size_t i) {
    if (text_[i] == '\\' && quote_[0] == '"') return 2;
    if (text_.substr(i, quote_.size()) != quote_) return 1;
    size_t width = quote_.size();
    // Up to two quotes before the three that close belong to the text.
    for (; quote_.size() == 3 && width < 5 && i + width < text_.size(); ++width) {
      if (text_[i + width] != quote_[0]) break;
    }
    quote_ = {};
    return width;
  }

  std::string_view text_;
  std::string_view quote_;  // what closes the string we are in
  bool comment_ = false;
  size_t line_ = 1, column_ = 1;
  size_t dots_ = 0;  // in this line
};

// Not one of toml++'s own errors.
struct PromiseBroken {};

bool breaks_a_promise(std::string_view text) {
  try {
    static_cast<void>(toml::parse(text));
    return false;
  } catch (const toml::parse_error&) {
    return false;
  } catch (const PromiseBroken&) {
    return true;
  }
}

// The number of the line that breaks a promise. The parser reads in order, so the text up to a line
// breaks one exactly if that line is not before the one we look for.
size_t line_of_broken_promise(std::string_view text) {
  std::vector<size_t> ends;  // of lines, past the newline
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') ends.push_back(i + 1);
  }
  size_t low = 1, high = ends.size() + 1;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (breaks_a_promise(text.substr(0, ends[middle - 1]))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

void toml_promise_broken() {
  throw PromiseBroken();
}

std::string place_of(const toml::source_region& source, const std::string& path) {
  return path + ":" + std::to_string(source.begin.line) + ":" + std::to_string(source.begin.column);
}

Result<toml::table> parse_toml(std::string_view text, const std::string& path) {
  if (const auto mistake = Scanner(text).find_mistake()) return Error{path + ":" + *mistake};
  try {
    return toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    std::string reason(error.description());
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    reason = terminal_lines("", reason);  // it quotes the file
    reason.pop_back();
    return Error{place_of(error.source(), path) + ": not valid TOML: " + reason};
  } catch (const PromiseBroken&) {
    return Error{path + ":" + std::to_string(line_of_broken_promise(text)) +
                 ":1: not valid TOML: expected a table's name or a key here"};
  }
}

std::vector<TomlEntry> entries_of(const toml::table& table, const std::string& path) {
  struct Placed {
    toml::source_position position;
    TomlEntry entry;
  };
  std::vector<Placed> placed;
  for (auto&& [key, node] : table) {
    TomlEntry entry{std::string(key.str()), place_of(key.source(), path),
                    place_of(node.source(), path), path, &node};
    placed.push_back({key.source().begin, std::move(entry)});
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const Placed& a, const Placed& b) { return a.position < b.position; });
  std::vector<TomlEntry> entries;
  for (Placed& one : placed) entries.push_back(std::move(one.entry));
  return entries;
}

std::string type_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "true or false";
    default:
      return "a date or time";
  }
}

Error type_error(const TomlEntry& entry, const std::string& expected) {
  return Error{entry.value_at + ": " + entry.key + " expects " + expected + ", not " +
               type_of(*entry.value)};
}

Result<std::string> read_text(const TomlEntry& entry) {
  const toml::value<std::string>* text = entry.value->as_string();
  if (text == nullptr) return type_error(entry, "a string, such as \"text\"");
  if (text->get().find('\0') != std::string::npos) {
    return Error{entry.value_at + ": " + entry.key + " holds a null character"};
  }
  return text->get();
}

Result<bool> read_flag(const TomlEntry& entry) {
  const toml::value<bool>* flag = entry.value->as_boolean();
  if (flag == nullptr) return type_error(entry, "true or false");
  return flag->get();
}

Result<int64_t> read_whole(const TomlEntry& entry, int64_t least, int64_t most) {
  const std::string expected =
      "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  const toml::value<int64_t>* number = entry.value->as_integer();
  if (number == nullptr) return type_error(entry, expected);
  if (number->get() < least || number->get() > most) {
    return Error{entry.value_at + ": " + entry.key + " is " + std::to_string(number->get()) +
                 ": expected " + expected};
  }
  return number->get();
}

Result<std::vector<std::string>> read_texts(const TomlEntry& entry) {
  const toml::array* array = entry.value->as_array();
  if (array == nullptr) return type_error(entry, "an array of strings, such as [\"a\", \"b\"]");
  std::vector<std::string> texts;
  for (const toml::node& node : *array) {
    const TomlEntry item{"an entry of " + entry.key, entry.key_at, entry.value_at, entry.path,
                         &node};
    auto text = read_text(item);
    if (!text) return text.error();
    texts.push_back(std::move(*text));
  }
  return texts;
}

Result<Variables> read_variables(const TomlEntry& entry) {
  const toml::table* table = entry.value->as_table();
  if (table == nullptr)
    return type_error(entry, "a table of strings, such as { NAME = \"value\" }");
  Variables variables;
  for (const TomlEntry& variable : entries_of(*table, entry.path)) {
    if (const Status status = check_variable_name(variable.key); !status) {
      return Error{variable.key_at + ": " + status.error().text};
    }
    auto value = read_text(variable);
    if (!value) return value.error();
    variables.emplace_back(variable.key, std::move(*value));
  }
  return variables;
}

}  // namespace hvd
