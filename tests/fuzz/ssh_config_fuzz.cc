// The user's ssh configuration and the answer of `ssh -G`, behind a zero byte.
#include "launcher/ssh_config.h"
#include "launcher/ssh_plan.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

namespace {

void check_config(const std::string& text) {
  size_t asked = 0;
  const SshInclude include = [&](const std::string&) {
    std::vector<SshConfigFile> files;
    if (++asked < 20) files.push_back({"included", text.substr(text.size() / 2)});
    return files;
  };
  SshConfigText config;
  add_ssh_config({"config", text}, include, config);
  for (const std::string& host :
       {std::string("gpu01"), std::string("fe80::1%hme0"), std::string(40, 'a')}) {
    const SshConfigUse use = config_use(config, host);
    const auto directives = directives_for(config, host);
    for (const SshDirective& one : directives) {
      HVD_CHECK(!one.keyword.empty() && !one.place.empty());
      HVD_CHECK(mentions(config, one.keyword.c_str()));
    }
    // Of an untouched host nothing is said, so that ssh need not be asked.
    if (!use.touched) HVD_CHECK(directives.empty());
  }
}

void check_plan(std::string_view answer) {
  SshTarget target;
  target.label = target.address = "fe80::1%hme0";
  const SshPlan plan = ssh_plan(answer, target, {"/home/u", "u", "here", false});
  HVD_CHECK(plan.host_name.size() <= answer.size() + target.address.size());
  HVD_CHECK(plan.port > 0 && plan.port < 65536);
  HVD_CHECK(!plan.host_name.empty() && !plan.user.empty());
  HVD_CHECK(plan.connect_limit >= Duration{});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest = text_of(data, size);
  check_config(std::string(take_until(rest, '\0')));
  check_plan(rest);
  return 0;
}
