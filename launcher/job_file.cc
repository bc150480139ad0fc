#include "launcher/job_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/host_spec.h"
#include "launcher/host_table.h"
#include "launcher/hosts.h"
#include "launcher/open_channel.h"
#include "launcher/suggest.h"
#include "launcher/toml_text.h"
#include "supervisor/placement.h"

namespace hvd {

namespace {

constexpr int64_t kFormat = 1;

constexpr const char* kStallActions[] = {"warn", "restart"};

constexpr const char* kBindings[] = {"none", "core", "numa"};

// ---- writing ----

// A string as TOML has it; bytes that are not UTF-8 go as { hex = ".." }.
std::string toml_string(std::string_view text) {
  std::string out;
  if (!is_utf8(text)) {
    for (const char c : text) {
      out += fmt::format("{:02x}", static_cast<unsigned char>(c));
    }
    return "{ hex = \"" + out + "\" }";
  }
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return "\"" + out + "\"";
}

std::string toml_strings(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (size_t i = 0; i < texts.size(); ++i) out += (i > 0 ? ", " : "") + toml_string(texts[i]);
  return out + "]";
}

// Pairs rather than a table: any bytes can be a name, and the order stays.
std::string toml_pairs(const Variables& variables) {
  std::string out = "[";
  for (const auto& [name, value] : variables) {
    out += "\n  [" + toml_string(name) + ", " + toml_string(value) + "],";
  }
  return out + (variables.empty() ? "]" : "\n]");
}

std::string toml_table(const Variables& variables) {
  std::string out = "{";
  for (size_t i = 0; i < variables.size(); ++i) {
    out += (i > 0 ? ", " : " ") + toml_string(variables[i].first) + " = " +
           toml_string(variables[i].second);
  }
  return out + " }";
}

std::string toml_duration(Duration duration) {
  const auto ns = duration.count();
  return fmt::format("\"{}.{:09}s\"", ns / 1'000'000'000, ns % 1'000'000'000);
}

class Writer {
 public:
  void line(const char* key, const std::string& value) { text_ += key + (" = " + value) + "\n"; }
  void text(const char* key, const std::string& value) { line(key, toml_string(value)); }
  void text_if(const char* key, const std::string& value) {
    if (!value.empty()) text(key, value);
  }
  void number(const char* key, uint64_t value) { line(key, std::to_string(value)); }
  void flag(const char* key, bool value) { line(key, value ? "true" : "false"); }
  void raw(std::string_view text) { text_ += text; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void write_host(const Host& host, Writer& out) {
  out.raw("\n[[host]]\n");
  out.text("name", host.name);
  if (host.address != host.name) out.text("address", host.address);
  if (host.port != 0) out.number("port", host.port);
  out.text_if("user", host.user);
  out.text_if("identity", host.identity);
  if (!host.gpus.empty()) out.line("gpus", toml_strings(host.gpus));
  out.number("slots", host.slots);
  if (host.max_slots != 0) out.number("max-slots", host.max_slots);
  out.flag("slots-given", host.slots_given);
  out.flag("slots-auto", host.slots_auto);
  if (!host.env.empty()) out.line("env", toml_table(host.env));
  out.text_if("workdir", host.workdir);
  if (!host.labels.empty()) out.line("labels", toml_table(host.labels));
  out.flag("spare", host.spare);
  out.flag("local", host.local);
  out.text("source", host.source);
}

Variables kept_variables(const Job& job) {
  Variables kept;
  for (const auto& variable : job.forwarded) {
    if (is_kept_variable(variable.first)) kept.push_back(variable);
  }
  return kept;
}

Variables set_with_value(const Job& job) {
  Variables set;
  for (const auto& variable : job.set) {
    const auto& by_name = job.set_by_name;
    if (std::find(by_name.begin(), by_name.end(), variable.first) == by_name.end()) {
      set.push_back(variable);
    }
  }
  return set;
}

// ---- reading ----

Result<std::string> from_hex(const TomlEntry& entry, const std::string& digits) {
  const auto value = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    const int high = value(digits[i]), low = value(digits[i + 1]);
    if (high < 0 || low < 0 || high + low == 0) break;
    bytes += static_cast<char>(high * 16 + low);
  }
  if (digits.empty() || bytes.size() * 2 != digits.size()) {
    return Error{entry.value_at + ": hex expects pairs of the digits 0-9 and a-f, none 00"};
  }
  return bytes;
}

// A string, or its bytes as { hex = ".." }.
Result<std::string> read_bytes(const TomlEntry& entry) {
  const toml::table* table = entry.value->as_table();
  if (table == nullptr) return read_text(entry);
  const auto entries = entries_of(*table, entry.path);
  if (entries.size() != 1 || entries[0].key != "hex") return type_error(entry, "a string");
  const auto digits = read_text(entries[0]);
  if (!digits) return digits.error();
  return from_hex(entries[0], *digits);
}

Result<std::vector<std::string>> read_byte_strings(const TomlEntry& entry) {
  const toml::array* array = entry.value->as_array();
  if (array == nullptr) return type_error(entry, "an array of strings");
  std::vector<std::string> texts;
  for (const toml::node& node : *array) {
    auto text = read_bytes({"an entry of " + entry.key, entry.key_at,
                            place_of(node.source(), entry.path), entry.path, &node});
    if (!text) return text.error();
    texts.push_back(std::move(*text));
  }
  return texts;
}

Result<Variables> read_pairs(const TomlEntry& entry) {
  const toml::array* array = entry.value->as_array();
  if (array == nullptr) return type_error(entry, "an array of pairs [NAME, VALUE]");
  Variables variables;
  for (const toml::node& node : *array) {
    const std::string at = place_of(node.source(), entry.path);
    const auto pair =
        read_byte_strings({"a pair of " + entry.key, entry.key_at, at, entry.path, &node});
    if (!pair) return pair.error();
    if (pair->size() != 2) return Error{at + ": " + entry.key + " expects pairs [NAME, VALUE]"};
    if (const Status status = check_variable_name((*pair)[0]); !status) {
      return Error{at + ": " + status.error().text};
    }
    variables.emplace_back((*pair)[0], (*pair)[1]);
  }
  return variables;
}

Status read_duration(const TomlEntry& entry, Duration& to) {
  const auto text = read_text(entry);
  if (!text) return text.error();
  const auto duration = parse_duration(*text);
  if (!duration) return Error{entry.value_at + ": " + entry.key + ": " + duration.error().text};
  to = *duration;
  return Ok{};
}

template <class To, class T>
Status assign(To& to, Result<T> value) {
  if (!value) return value.error();
  to = static_cast<To>(std::move(*value));
  return Ok{};
}

Status read_absolute(const TomlEntry& entry, std::string& to) {
  if (const Status status = assign(to, read_bytes(entry)); !status) return status;
  if (to.starts_with('/')) return Ok{};
  return Error{entry.value_at + ": " + entry.key + " expects a path that begins with '/'"};
}

Status read_hosts(const TomlEntry& entry, Job& job) {
  const toml::array* array = entry.value->as_array();
  if (array == nullptr) return type_error(entry, "tables, each written [[host]]");
  for (const toml::node& node : *array) {
    const toml::table* table = node.as_table();
    const std::string at = place_of(node.source(), entry.path);
    if (table == nullptr) return Error{at + ": host expects tables, each written [[host]]"};
    HostDraft draft;
    draft.host.source = at;
    if (const Status status = read_host_table(*table, entry.path, HostKeys::saved, draft);
        !status) {
      return status;
    }
    const auto hosts = hosts_of(draft);
    if (!hosts) return hosts.error();
    if (hosts->size() != 1) return Error{at + ": expected the name of one host, not a range"};
    job.hosts.push_back(hosts->front());
    if (job.hosts.size() > kMostHosts) return Error{at + ": too many hosts"};
  }
  return Ok{};
}

// One of the names, in the order of the values.
template <class Value, size_t N>
Status read_choice(const TomlEntry& entry, const char* const (&names)[N], const char* expected,
                   Value& to) {
  const auto text = read_text(entry);
  if (!text) return text.error();
  for (size_t i = 0; i < N; ++i) {
    if (*text != names[i]) continue;
    to = static_cast<Value>(i);
    return Ok{};
  }
  return Error{entry.value_at + ": " + entry.key + " is " + in_quotes(*text) + ": expected " +
               expected};
}

Status read_binding(const TomlEntry& entry, Job& job) {
  return read_choice(entry, kBindings, "none, core or numa", job.binding);
}

Status read_stall_action(const TomlEntry& entry, Job& job) {
  return read_choice(entry, kStallActions, "warn or restart", job.stall_action);
}

Status read_rules(const TomlEntry& entry, Job& job) {
  const auto texts = read_byte_strings(entry);
  if (!texts) return texts.error();
  for (const std::string& text : *texts) {
    auto rule = parse_rule(text);
    if (!rule)
      return Error{entry.value_at + ": rule " + in_quotes(text) + ": " + rule.error().text};
    job.rules.push_back(std::move(*rule));
  }
  return Ok{};
}

struct Field {
  const char* key;
  bool needed;
  Status (*read)(const TomlEntry&, Job&);
};

constexpr Field kFields[] = {
    {"format", true,
     [](const TomlEntry& e, Job&) -> Status {
       const auto format = read_whole(e, 1, 1'000'000);
       if (!format) return format.error();
       if (*format == kFormat) return Ok{};
       return Error{e.value_at + ": format " + std::to_string(*format) +
                    " is another version's: expected " + std::to_string(kFormat)};
     }},
    {"hvdlaunch", true,
     [](const TomlEntry& e, Job&) -> Status {
       const auto version = read_text(e);
       return version ? Status(Ok{}) : version.error();
     }},
    {"command", true,
     [](const TomlEntry& e, Job& job) { return assign(job.argv, read_byte_strings(e)); }},
    {"directory", true, [](const TomlEntry& e, Job& job) { return read_absolute(e, job.workdir); }},
    {"size", true,
     [](const TomlEntry& e, Job& job) { return assign(job.size, read_whole(e, 1, kMostRanks)); }},
    {"substitute", false,
     [](const TomlEntry& e, Job& job) { return assign(job.substitute, read_flag(e)); }},
    {"oversubscribe", false,
     [](const TomlEntry& e, Job& job) { return assign(job.oversubscribe, read_flag(e)); }},
    {"gpus-per-rank", false,
     [](const TomlEntry& e, Job& job) -> Status {
       uint32_t count = 0;
       const Status status = assign(count, read_whole(e, 0, kMostSlots));
       if (status) job.gpus_per_rank = count;
       return status;
     }},
    {"bind", false, read_binding},
    {"launched-on", true,
     [](const TomlEntry& e, Job& job) { return assign(job.launched_on, read_text(e)); }},
    {"transport", true,
     [](const TomlEntry& e, Job& job) -> Status {
       const auto name = read_text(e);
       if (!name) return name.error();
       const auto transport = transport_of(*name);
       if (!transport) return Error{e.value_at + ": there is no transport " + in_quotes(*name)};
       job.transport = *transport;
       return Ok{};
     }},
    {"rsh", false,
     [](const TomlEntry& e, Job& job) { return assign(job.rsh, read_byte_strings(e)); }},
    {"start-timeout", true,
     [](const TomlEntry& e, Job& job) { return read_duration(e, job.start_timeout); }},
    {"heartbeat-timeout", true,
     [](const TomlEntry& e, Job& job) { return read_duration(e, job.silence); }},
    {"grace", true, [](const TomlEntry& e, Job& job) { return read_duration(e, job.grace); }},
    {"failure-grace", true,
     [](const TomlEntry& e, Job& job) { return read_duration(e, job.failure_grace); }},
    {"survive", false, [](const TomlEntry& e, Job& job) { return read_duration(e, job.survive); }},
    {"walltime", false,
     [](const TomlEntry& e, Job& job) { return read_duration(e, job.wall_time.emplace()); }},
    {"stall-timeout", false,
     [](const TomlEntry& e, Job& job) {
       const Status status = read_duration(e, job.stall_timeout);
       job.stall_asked = job.stall_timeout > Duration::zero();
       return status;
     }},
    {"stall-action", false, read_stall_action},
    {"max-restarts", false,
     [](const TomlEntry& e, Job& job) -> Status {
       uint32_t count = 0;
       const Status status = assign(count, read_whole(e, 0, 1'000'000));
       if (status) job.max_restarts = count;
       return status;
     }},
    {"max-host-failures", false,
     [](const TomlEntry& e, Job& job) {
       return assign(job.max_host_failures, read_whole(e, 0, 1'000'000));
     }},
    {"rule", false, read_rules},
    {"host-discovery-script", false,
     [](const TomlEntry& e, Job& job) { return assign(job.discovery, read_text(e)); }},
    {"ssh-port", false,
     [](const TomlEntry& e, Job& job) { return assign(job.ssh_port, read_whole(e, 1, 65535)); }},
    {"identity", false,
     [](const TomlEntry& e, Job& job) { return read_absolute(e, job.identity); }},
    {"slots-per-host", false,
     [](const TomlEntry& e, Job& job) {
       return assign(job.slots_per_host, read_whole(e, 1, kMostSlots));
     }},
    {"checkpoint-dir", false,
     [](const TomlEntry& e, Job& job) { return read_absolute(e, job.checkpoint_dir); }},
    {"checkpoint-every", false,
     [](const TomlEntry& e, Job& job) { return assign(job.checkpoint_every, read_text(e)); }},
    {"checkpoint-keep", true,
     [](const TomlEntry& e, Job& job) {
       return assign(job.checkpoint_keep, read_whole(e, 1, 1'000'000));
     }},
    {"environment", true,
     [](const TomlEntry& e, Job& job) { return assign(job.forwarded, read_pairs(e)); }},
    {"set", true, [](const TomlEntry& e, Job& job) { return assign(job.set, read_pairs(e)); }},
    {"set-by-name", true,
     [](const TomlEntry& e, Job& job) { return assign(job.set_by_name, read_byte_strings(e)); }},
    {"host", true, read_hosts},
};

Status read_field(const TomlEntry& entry, Job& job) {
  std::vector<std::string> known;
  for (const Field& field : kFields) {
    if (entry.key == field.key) return field.read(entry, job);
    known.push_back(field.key);
  }
  return Error{entry.key_at + ": unknown key " + in_quotes(entry.key) +
               suggestion(entry.key, known)};
}

}  // namespace

bool is_kept_variable(std::string_view name) {
  if (!check_variable_name(std::string(name))) return false;  // could not be read back
  return name == "PATH" || name == "LD_LIBRARY_PATH" || name == "PYTHONPATH" ||
         name == "VIRTUAL_ENV" || name.starts_with("CONDA_");
}

std::string job_file_text(const Job& job, std::string_view version) {
  Writer out;
  out.raw(
      "# How to go on with this job: hvdlaunch resume FOLDER, where this file is in FOLDER.\n"
      "# Written by hvdlaunch at the start of the job.\n");
  out.number("format", kFormat);
  out.text("hvdlaunch", std::string(version));
  out.line("command", toml_strings(job.argv));
  out.text("directory", job.workdir);
  out.number("size", job.size);
  out.text("launched-on", job.launched_on);
  out.line("start-timeout", toml_duration(job.start_timeout));
  out.line("heartbeat-timeout", toml_duration(job.silence));
  out.line("grace", toml_duration(job.grace));
  out.line("failure-grace", toml_duration(job.failure_grace));
  if (job.survive > Duration::zero()) out.line("survive", toml_duration(job.survive));
  if (job.wall_time) out.line("walltime", toml_duration(*job.wall_time));
  if (job.stall_asked || job.stall_timeout == Duration::zero()) {
    out.line("stall-timeout", toml_duration(job.stall_timeout));
  }
  if (job.stall_action != StallAction::warn) {
    out.text("stall-action", kStallActions[static_cast<size_t>(job.stall_action)]);
  }
  if (job.max_restarts) out.number("max-restarts", *job.max_restarts);
  out.number("max-host-failures", job.max_host_failures);
  std::vector<std::string> rules;
  for (const Rule& rule : job.rules) rules.push_back(rule.text);
  if (!rules.empty()) out.line("rule", toml_strings(rules));
  out.text_if("host-discovery-script", job.discovery);
  if (job.ssh_port > 0) out.number("ssh-port", job.ssh_port);
  out.text_if("identity", job.identity);
  if (job.slots_per_host > 0) out.number("slots-per-host", job.slots_per_host);
  out.text_if("checkpoint-dir", job.checkpoint_dir);
  out.text_if("checkpoint-every", job.checkpoint_every);
  out.number("checkpoint-keep", job.checkpoint_keep);
  out.text("transport", transport_name(job.transport));
  if (!job.rsh.empty()) out.line("rsh", toml_strings(job.rsh));
  if (job.substitute) out.flag("substitute", true);
  if (job.oversubscribe) out.flag("oversubscribe", true);
  if (job.gpus_per_rank) out.number("gpus-per-rank", *job.gpus_per_rank);
  if (job.binding != Binding::none) out.text("bind", kBindings[static_cast<size_t>(job.binding)]);
  out.line("environment", toml_pairs(kept_variables(job)));
  out.line("set", toml_pairs(set_with_value(job)));
  out.line("set-by-name", toml_strings(job.set_by_name));
  for (const Host& host : job.hosts) write_host(host, out);
  return out.take();
}

Result<Job> parse_job_file(std::string_view text, const std::string& path) {
  const auto document = parse_toml(text, path);
  if (!document) return document.error();
  Job job;
  for (const TomlEntry& entry : entries_of(*document, path)) {
    if (const Status status = read_field(entry, job); !status) return status.error();
  }
  for (const Field& field : kFields) {
    if (field.needed && !document->contains(field.key)) {
      return Error{path + ":1:1: the key '" + field.key + "' is missing"};
    }
  }
  if (job.argv.empty() || job.argv[0].empty()) return Error{path + ":1:1: the command is empty"};
  if (job.hosts.empty()) return Error{path + ":1:1: no host is named here"};
  if (const Status status = check_no_duplicates(job.hosts); !status) {
    return Error{path + ":1:1: " + status.error().text};
  }
  return job;
}

}  // namespace hvd
