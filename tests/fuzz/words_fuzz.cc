// Small texts from outside: notifications of workers, GPU lists, durations, templates, addresses,
// --rsh commands, environment files.
#include "base/address.h"
#include "base/gpu_view.h"
#include "base/template.h"
#include "base/time.h"
#include "cli/env_file.h"
#include "launcher/rsh.h"
#include "launcher/suggest.h"
#include "supervisor/agent/notify_socket.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

namespace {

void check_env_file(std::string_view text) {
  const auto variables = parse_env_file(text, "f");
  if (!variables) return check_sentence(variables.error().text, "f:");
  for (const VariableWord& word : *variables) HVD_CHECK(check_variable_word(word.text).ok());
}

void check_rsh(const std::string& text) {
  const auto words = parse_rsh(text);
  if (!words) return check_sentence(words.error().text, "");
  Host host;
  host.name = host.address = "gpu01";
  HVD_CHECK(fill_rsh(*words, host, "u").size() >= words->size());
}

void check_small(const std::string& text) {
  const Notification told = parse_notification(text);
  HVD_CHECK(told.checkpoint.size() <= text.size());
  HVD_CHECK(gpu_view(text, 8).size() <= text.size() + 1);
  HVD_CHECK(gpu_view(std::nullopt, 8).size() == 8);
  if (is_dialable(text)) HVD_CHECK(!network_of(text, 24).empty() && !has_controls(text));
  HVD_CHECK(network_of(text, 999).size() <= 32);
  const std::string quoted = in_quotes(text);
  HVD_CHECK(!has_controls(quoted) && quoted.size() < 400 && is_utf8(quoted));
  const auto duration = parse_duration(text);
  HVD_CHECK(!duration || *duration >= Duration{});
  HVD_CHECK(fill_template(text, {{"rank", "3"}}).size() <= text.size());
  check_sentence(suggestion(text, {"slots", "name"}), "");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(text_of(data, size));
  check_env_file(text);
  check_rsh(text);
  check_small(text);
  return 0;
}
