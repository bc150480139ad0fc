// The words of a command line, one to a line of the input.
#include "cli/options.h"
#include "launcher/terminal_text.h"
#include "tests/fuzz/fuzz.h"

using namespace hvd;
using namespace hvd::fuzz;

namespace {

void check_run(const RunCommand& run) {
  HVD_CHECK(run.print_env || !run.job.argv.empty());
  HVD_CHECK(!run.job.hosts.empty());
  if (!run.unsized.empty()) return;
  size_t ranks = 0;
  for (const HostPlaces& host : run.placement) ranks += host.places.size();
  HVD_CHECK(run.job.size > 0 && ranks == run.job.size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = text_of(data, size);
  std::vector<std::string> words;
  while (!text.empty()) words.emplace_back(take_until(text, '\n'));
  Surroundings around;
  around.environment = {{"HOME", "/home/u"}, {"USER", "u"}, {"PATH", "/bin"}};
  around.directory = "/nowhere";
  around.machine = {"here", "u", 2, 4};
  const auto command = parse_command(words, around);
  if (!command) {
    // As it is printed: it may name a path, which is of any bytes.
    std::string shown = terminal_lines("", command.error().text);
    shown.pop_back();
    check_sentence(shown, "");
  } else if (const auto* run = std::get_if<RunCommand>(&*command)) {
    check_run(*run);
  }
  return 0;
}
