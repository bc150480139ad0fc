// One [[host]] table of a host file or job file as hosts. Inside the launcher's TOML reading only.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/toml_text.h"
#include "supervisor/host.h"

namespace hvd {

// A host whose name may still hold ranges, and what a [defaults] table says of hosts.
struct HostDraft {
  Host host;
  std::string name_at;
  std::string address;  // pattern, empty: the name
  std::string address_at;
  bool sized = false;  // slots were given, or gpus that slots follow from
};

// Which keys a table may have.
enum class HostKeys {
  defaults,  // all but name and address
  user,      // what users write
  saved,     // also what a job file keeps: local, source, slots-given, slots-auto
};

// Adds what the table says to the draft. Unknown keys, wrong types and values out of range are
// errors.
Status read_host_table(const toml::table& table, const std::string& path, HostKeys keys,
                       HostDraft& draft);

// The hosts a finished draft stands for, one per name of its range.
Result<std::vector<Host>> hosts_of(const HostDraft& draft);

}  // namespace hvd
