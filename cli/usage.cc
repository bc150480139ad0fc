// What --help prints, from the table of options.
#include "cli/settings.h"

namespace hvd {

namespace {

// "  -n, --np, --num-proc N", filled up to where the help begins.
std::string usage_line(const Option& option) {
  constexpr size_t kColumn = 30;
  std::string line = " ";
  for (const std::string& spelling : spellings(option)) {
    line += (line == " " ? " " : ", ") + spelling;
  }
  if (*option.value != '\0') line += std::string(" ") + option.value;
  if (line.size() + 2 > kColumn) line += "\n" + std::string(kColumn, ' ');
  const size_t begun =
      line.size() - (line.rfind('\n') == std::string::npos ? 0 : line.rfind('\n') + 1);
  line += std::string(begun < kColumn ? kColumn - begun : 0, ' ');
  for (const char* c = option.help; *c != '\0'; ++c) {
    line += *c;
    if (*c == '\n') line += std::string(kColumn, ' ');
  }
  return line + "\n";
}

}  // namespace

std::string usage_text() {
  std::string text =
      "Usage: hvdlaunch [OPTIONS] [--] PROGRAM [ARGS...]\n"
      "       hvdlaunch resume CKPT_DIR|HOST:DIR [OPTIONS] [-- PROGRAM [ARGS...]]\n"
      "       hvdlaunch checkpoints CKPT_DIR [--verify] [--prune] [--json]\n"
      "       hvdlaunch stacks [JOB]\n"
      "       hvdlaunch attach [JOB]\n"
      "       hvdlaunch report RUN_DIR|JOB [--json]\n"
      "\n"
      "Starts PROGRAM once per rank on all hosts, over SSH, and watches it to the end: when a "
      "rank\n"
      "or a host fails, all ranks are started again from the newest complete checkpoint.\n"
      "`resume` goes on with a job whose launcher is gone; options replace what it was started\n"
      "with. `attach` watches a job again that has survived its launcher (--survive).\n"
      "`checkpoints` shows what is in a folder, what of it is whole, and what would be resumed;\n"
      "`stacks` where the ranks of a running job wait; `report` what became of a job.\n"
      "Options end at PROGRAM or at `--`; everything after belongs to PROGRAM.\n";
  std::string group;
  for (const Option& option : options()) {
    if (*option.group == '\0') continue;
    if (group != option.group) text += "\n" + std::string(option.group) + ":\n";
    group = option.group;
    text += usage_line(option);
  }
  text +=
      "\n"
      "Exit status: 0 when all ranks end with 0; else that of the rank that failed first, or 128\n"
      "and its signal's number. Of hvdlaunch itself: 2 usage or configuration, 3 nothing to "
      "resume,\n"
      "69 hosts not reached, 70 gave up after failures, 75 stopped with the work saved, 124 the\n"
      "wall time ended without a save, 125 its own failure, 126 or 127 PROGRAM cannot be run or "
      "is\n"
      "not found, 129, 130, 143 stopped by HUP, INT, TERM. `man hvdlaunch` says more.\n";
  return text;
}

}  // namespace hvd
