// Host files in TOML.
#include <fmt/core.h>

#include <utility>

#include "launcher/host_spec.h"
#include "launcher/host_table.h"
#include "launcher/hosts.h"
#include "launcher/suggest.h"
#include "launcher/toml_text.h"
#include "supervisor/rules.h"

namespace hvd {

namespace {

// A scalar of [job] as the command line would have it.
Result<std::string> word_of(const toml::node& node, Setting::Type& type) {
  if (const auto* text = node.as_string()) {
    type = Setting::Type::text;
    return text->get();
  }
  if (const auto* whole = node.as_integer()) {
    type = Setting::Type::whole;
    return std::to_string(whole->get());
  }
  if (const auto* real = node.as_floating_point()) {
    type = Setting::Type::real;
    return fmt::format("{:.9f}", real->get());
  }
  if (const auto* flag = node.as_boolean()) {
    type = Setting::Type::flag;
    return std::string(flag->get() ? "true" : "false");
  }
  return Error{"expected a string, a number, true or false, or an array of strings, not " +
               type_of(node)};
}

Result<Setting> read_setting(const TomlEntry& entry) {
  Setting setting{entry.key, {}, Setting::Type::text, entry.key_at};
  const toml::array* array = entry.value->as_array();
  if (array == nullptr) {
    auto word = word_of(*entry.value, setting.type);
    if (!word) return Error{entry.value_at + ": " + entry.key + ": " + word.error().text};
    setting.values.push_back(std::move(*word));
    return setting;
  }
  for (const toml::node& node : *array) {
    auto word = word_of(node, setting.type);
    if (!word) return Error{entry.value_at + ": " + entry.key + ": " + word.error().text};
    setting.values.push_back(std::move(*word));
  }
  return setting;
}

// [[job.rule]] with `on` and `action`, as --rule has them in one word.
Result<std::string> read_rule(const toml::table& table, const std::string& place,
                              const std::string& path) {
  std::string on, action;
  for (const TomlEntry& entry : entries_of(table, path)) {
    if (entry.key != "on" && entry.key != "action") {
      return Error{entry.key_at + ": unknown key " + in_quotes(entry.key) + " of a rule" +
                   suggestion(entry.key, {"on", "action"})};
    }
    const auto text = read_text(entry);
    if (!text) return text.error();
    (entry.key == "on" ? on : action) = *text;
  }
  const auto rule = parse_rule(on + ": " + action);
  if (!rule)
    return Error{place + ": rule " + in_quotes(on + ": " + action) + ": " + rule.error().text};
  return rule->text;
}

Result<Setting> read_rules(const TomlEntry& entry, const toml::array& array) {
  Setting setting{entry.key, {}, Setting::Type::text, entry.key_at};
  for (const toml::node& node : array) {
    const toml::table* table = node.as_table();
    if (table == nullptr) return type_error(entry, "tables, each written [[job.rule]]");
    auto rule = read_rule(*table, place_of(node.source(), entry.path), entry.path);
    if (!rule) return rule.error();
    setting.values.push_back(std::move(*rule));
  }
  return setting;
}

Status read_job(const TomlEntry& entry, const std::string& path, HostFile& file) {
  const toml::table* table = entry.value->as_table();
  if (table == nullptr) return type_error(entry, "a table, written [job]");
  for (const TomlEntry& option : entries_of(*table, path)) {
    const toml::array* array = option.value->as_array();
    const bool rules = option.key == "rule" && array != nullptr && array->is_array_of_tables();
    auto setting = rules ? read_rules(option, *array) : read_setting(option);
    if (!setting) return setting.error();
    file.job.push_back(std::move(*setting));
  }
  return Ok{};
}

Status read_hosts(const TomlEntry& entry, const std::string& path, const HostDraft& defaults,
                  HostFile& file) {
  const toml::array* array = entry.value->as_array();
  if (array == nullptr) return type_error(entry, "tables, each written [[host]]");
  for (const toml::node& node : *array) {
    const std::string place = place_of(node.source(), path);
    const toml::table* table = node.as_table();
    if (table == nullptr) return Error{place + ": host expects tables, each written [[host]]"};
    HostDraft draft = defaults;
    draft.host.source = place;
    const Status status = read_host_table(*table, path, HostKeys::user, draft);
    if (!status) return status;
    auto hosts = hosts_of(draft);
    if (!hosts) return hosts.error();
    if (file.hosts.size() + hosts->size() > kMostHosts) {
      return Error{place + ": more than " + std::to_string(kMostHosts) + " hosts"};
    }
    for (Host& host : *hosts) file.hosts.push_back(std::move(host));
  }
  return Ok{};
}

Status read_defaults(const TomlEntry& entry, const std::string& path, HostDraft& defaults) {
  const toml::table* table = entry.value->as_table();
  if (table == nullptr) return type_error(entry, "a table, written [defaults]");
  return read_host_table(*table, path, HostKeys::defaults, defaults);
}

}  // namespace

Result<HostFile> parse_hosts_toml(std::string_view text, const std::string& path) {
  const auto document = parse_toml(text, path);
  if (!document) return document.error();
  const std::vector<TomlEntry> entries = entries_of(*document, path);
  HostDraft defaults;
  HostFile file;
  // Defaults hold for all hosts, wherever in the file they stand.
  for (const TomlEntry& entry : entries) {
    if (entry.key != "defaults") continue;
    if (const Status status = read_defaults(entry, path, defaults); !status) return status.error();
  }
  for (const TomlEntry& entry : entries) {
    Status status = Ok{};
    if (entry.key == "host") {
      status = read_hosts(entry, path, defaults, file);
    } else if (entry.key == "job") {
      status = read_job(entry, path, file);
    } else if (entry.key != "defaults") {
      return Error{entry.key_at + ": unknown table or key " + in_quotes(entry.key) +
                   suggestion(entry.key, {"defaults", "host", "job"})};
    }
    if (!status) return status.error();
  }
  if (file.hosts.empty()) {
    return Error{path + ":1:1: no host is named here: expected a [[host]] table"};
  }
  if (const Status status = check_no_duplicates(file.hosts); !status) return status.error();
  return file;
}

}  // namespace hvd
