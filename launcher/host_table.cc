#include "launcher/host_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "launcher/host_spec.h"
#include "launcher/suggest.h"
#include "launcher/toml_text.h"

namespace hvd {

namespace {

constexpr int64_t kHighestGpu = 1023;

Status at(const std::string& place, const Status& status) {
  return status ? status : Status(Error{place + ": " + status.error().text});
}

// Assigns a value that was read, or passes its error on.
template <class T, class To>
Status assign(To& to, Result<T> value) {
  if (!value) return value.error();
  to = static_cast<To>(std::move(*value));
  return Ok{};
}

Status read_name(const TomlEntry& entry, HostDraft& draft) {
  draft.name_at = entry.value_at;
  return assign(draft.host.name, read_text(entry));
}

Status read_address(const TomlEntry& entry, HostDraft& draft) {
  draft.address_at = entry.value_at;
  if (const Status status = assign(draft.address, read_text(entry)); !status) return status;
  return draft.address.empty() ? Status(Error{entry.value_at + ": address is empty"}) : Ok{};
}

Status read_port(const TomlEntry& entry, HostDraft& draft) {
  return assign(draft.host.port, read_whole(entry, 1, 65'535));
}

Status read_user(const TomlEntry& entry, HostDraft& draft) {
  if (const Status status = assign(draft.host.user, read_text(entry)); !status) return status;
  return at(entry.value_at, check_user(draft.host.user));
}

Status read_identity(const TomlEntry& entry, HostDraft& draft) {
  if (const Status status = assign(draft.host.identity, read_text(entry)); !status) return status;
  if (!draft.host.identity.empty()) return Ok{};
  return Error{entry.value_at + ": identity is empty: expected the path of a private key"};
}

Status read_slots(const TomlEntry& entry, HostDraft& draft) {
  draft.sized = true;
  draft.host.slots_given = draft.host.slots_auto = false;
  if (const toml::value<std::string>* text = entry.value->as_string()) {
    if (text->get() != "auto") {
      return Error{entry.value_at + ": slots is " + in_quotes(text->get()) +
                   ": expected a whole number from 1 to " + std::to_string(kMostSlots) +
                   ", or \"auto\""};
    }
    draft.host.slots = 1;
    draft.host.slots_auto = true;
    return Ok{};
  }
  draft.host.slots_given = true;
  return assign(draft.host.slots, read_whole(entry, 1, kMostSlots));
}

Status read_max_slots(const TomlEntry& entry, HostDraft& draft) {
  return assign(draft.host.max_slots, read_whole(entry, 1, kMostSlots));
}

Result<std::string> read_gpu(const toml::node& node, const std::string& place) {
  if (const toml::value<int64_t>* index = node.as_integer()) {
    if (index->get() >= 0 && index->get() <= kHighestGpu) return std::to_string(index->get());
  } else if (const toml::value<std::string>* text = node.as_string()) {
    // What CUDA_VISIBLE_DEVICES takes: "GPU-8f2c..", "MIG-GPU-8f2c../1/0".
    const auto fits = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
             c == '-' || c == '/';
    };
    const std::string& name = text->get();
    if (!name.empty() && std::all_of(name.begin(), name.end(), fits)) return name;
  }
  return Error{place +
               ": an entry of gpus is not a device: expected an index such as 0 or an "
               "identifier such as \"GPU-8f2c\""};
}

Status read_gpus(const TomlEntry& entry, HostDraft& draft) {
  const toml::array* array = entry.value->as_array();
  if (array == nullptr) return type_error(entry, "an array of devices, such as [0, 2]");
  std::vector<std::string>& gpus = draft.host.gpus;
  gpus.clear();
  for (const toml::node& node : *array) {
    const std::string place = place_of(node.source(), entry.path);
    auto gpu = read_gpu(node, place);
    if (!gpu) return gpu.error();
    if (std::find(gpus.begin(), gpus.end(), *gpu) != gpus.end()) {
      return Error{place + ": gpus names " + in_quotes(*gpu) + " twice"};
    }
    gpus.push_back(std::move(*gpu));
  }
  return gpus.empty() ? Status(Error{entry.value_at + ": gpus is empty: expected a device"}) : Ok{};
}

// Adds to what is there; a variable that is there already takes the new value.
void merge(Variables& variables, const Variables& added) {
  for (const auto& [name, value] : added) {
    const auto same = [&name = name](const auto& variable) { return variable.first == name; };
    const auto place = std::find_if(variables.begin(), variables.end(), same);
    if (place != variables.end()) {
      place->second = value;
    } else {
      variables.emplace_back(name, value);
    }
  }
}

Status read_table(const TomlEntry& entry, Variables& to) {
  auto variables = read_variables(entry);
  if (!variables) return variables.error();
  merge(to, *variables);
  return Ok{};
}

Status read_env(const TomlEntry& entry, HostDraft& draft) {
  return read_table(entry, draft.host.env);
}

Status read_labels(const TomlEntry& entry, HostDraft& draft) {
  return read_table(entry, draft.host.labels);
}

Status read_workdir(const TomlEntry& entry, HostDraft& draft) {
  if (const Status status = assign(draft.host.workdir, read_text(entry)); !status) return status;
  if (draft.host.workdir.starts_with('/')) return Ok{};
  return Error{entry.value_at + ": workdir " + in_quotes(draft.host.workdir) +
               " is not absolute: expected a path that begins with '/'"};
}

Status read_spare(const TomlEntry& entry, HostDraft& draft) {
  return assign(draft.host.spare, read_flag(entry));
}

Status read_local(const TomlEntry& entry, HostDraft& draft) {
  return assign(draft.host.local, read_flag(entry));
}

Status read_source(const TomlEntry& entry, HostDraft& draft) {
  return assign(draft.host.source, read_text(entry));
}

Status read_slots_given(const TomlEntry& entry, HostDraft& draft) {
  return assign(draft.host.slots_given, read_flag(entry));
}

Status read_slots_auto(const TomlEntry& entry, HostDraft& draft) {
  return assign(draft.host.slots_auto, read_flag(entry));
}

struct Key {
  const char* name;
  HostKeys least;  // allowed in this kind of table and those after it
  Status (*read)(const TomlEntry&, HostDraft&);
};

constexpr Key kKeys[] = {
    {"name", HostKeys::user, read_name},
    {"address", HostKeys::user, read_address},
    {"port", HostKeys::defaults, read_port},
    {"user", HostKeys::defaults, read_user},
    {"identity", HostKeys::defaults, read_identity},
    {"slots", HostKeys::defaults, read_slots},
    {"max-slots", HostKeys::defaults, read_max_slots},
    {"gpus", HostKeys::defaults, read_gpus},
    {"env", HostKeys::defaults, read_env},
    {"workdir", HostKeys::defaults, read_workdir},
    {"labels", HostKeys::defaults, read_labels},
    {"spare", HostKeys::defaults, read_spare},
    {"local", HostKeys::saved, read_local},
    {"source", HostKeys::saved, read_source},
    {"slots-given", HostKeys::saved, read_slots_given},
    {"slots-auto", HostKeys::saved, read_slots_auto},
};

const Key* find_key(const std::string& name, HostKeys keys) {
  for (const Key& key : kKeys) {
    if (name == key.name && key.least <= keys) return &key;
  }
  return nullptr;
}

Error unknown_key(const TomlEntry& entry, HostKeys keys) {
  std::vector<std::string> known;
  for (const Key& key : kKeys) {
    if (key.least <= keys) known.push_back(key.name);
  }
  const char* table = keys == HostKeys::defaults ? "[defaults]" : "[[host]]";
  return Error{entry.key_at + ": unknown key " + in_quotes(entry.key) + " in " + table +
               suggestion(entry.key, known)};
}

Result<std::vector<std::string>> checked_names(const std::string& pattern,
                                               const std::string& place) {
  if (is_ipv6(pattern)) return std::vector<std::string>{pattern};
  auto names = expand_ranges(pattern);
  if (!names) return Error{place + ": " + names.error().text};
  for (const std::string& name : *names) {
    if (const Status status = at(place, check_host_name(name)); !status) return status.error();
  }
  return names;
}

}  // namespace

Status read_host_table(const toml::table& table, const std::string& path, HostKeys keys,
                       HostDraft& draft) {
  for (const TomlEntry& entry : entries_of(table, path)) {
    const Key* key = find_key(entry.key, keys);
    if (key == nullptr) return unknown_key(entry, keys);
    if (const Status status = key->read(entry, draft); !status) return status;
  }
  if (table.contains("gpus") && !table.contains("slots")) {
    draft.sized = draft.host.slots_given = true;
    draft.host.slots_auto = false;
    draft.host.slots = static_cast<uint32_t>(draft.host.gpus.size());
  }
  return Ok{};
}

Result<std::vector<Host>> hosts_of(const HostDraft& draft) {
  if (draft.name_at.empty()) {
    return Error{draft.host.source + ": this [[host]] has no name: expected name = \"h1\""};
  }
  const auto names = checked_names(draft.host.name, draft.name_at);
  if (!names) return names.error();
  const std::string wrong = slots_above_limit(draft.host.slots, draft.host.max_slots);
  if (!wrong.empty()) return Error{draft.name_at + ": " + wrong};
  std::vector<std::string> addresses = *names;
  if (!draft.address.empty()) {
    auto given = checked_names(draft.address, draft.address_at);
    if (!given) return given.error();
    if (given->size() != names->size()) {
      return Error{draft.address_at + ": address " + in_quotes(draft.address) + " stands for " +
                   std::to_string(given->size()) + " addresses and name " +
                   in_quotes(draft.host.name) + " for " + std::to_string(names->size()) +
                   " hosts: expected as many"};
    }
    addresses = std::move(*given);
  }
  std::vector<Host> hosts(names->size(), draft.host);
  for (size_t i = 0; i < hosts.size(); ++i) {
    hosts[i].name = (*names)[i];
    hosts[i].address = std::move(addresses[i]);
  }
  return hosts;
}

}  // namespace hvd
