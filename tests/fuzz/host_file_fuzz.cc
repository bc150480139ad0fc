// Host files, as TOML and as plain text.
#include "launcher/hosts.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

namespace {

void check_hosts(const std::vector<Host>& hosts) {
  HVD_CHECK(!hosts.empty() && hosts.size() <= kMostHosts);
  HVD_CHECK(check_no_duplicates(hosts).ok());
  for (const Host& host : hosts) {
    HVD_CHECK(check_host_name(host.name).ok());
    HVD_CHECK(check_host_name(host.address).ok());
    HVD_CHECK(host.user.empty() || check_user(host.user).ok());
    HVD_CHECK(host.slots <= kMostSlots && (host.slots > 0 || host.slots_auto));
    HVD_CHECK(host.source.starts_with("f:"));
    for (const auto& variable : host.env) HVD_CHECK(check_variable_name(variable.first).ok());
  }
}

void check_file(const Result<HostFile>& file) {
  if (!file) return check_sentence(file.error().text, "f:");
  check_hosts(file->hosts);
  for (const Setting& setting : file->job) {
    HVD_CHECK(!setting.name.empty() && setting.source.starts_with("f:"));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = text_of(data, size);
  static_cast<void>(looks_like_toml(text, "f"));
  check_file(parse_hosts_toml(text, "f"));
  check_file(parse_hosts_text(text, "f"));
  return 0;
}
