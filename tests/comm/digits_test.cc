// The digits come out the same, bit for bit, on any number of ranks and across a resume.
#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/comm/fake_agent.h"
#include "tests/comm/processes.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

std::string last_line(const std::string& output) {
  const size_t end = output.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t begin = output.rfind('\n', end);
  return output.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
}

std::string field(const std::string& line, const std::string& name) {
  const size_t at = line.find(name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 1;
  return line.substr(begin, line.find_first_of(" \n", begin) - begin);
}

// Rank 0's last line.
std::string train(const FakeAgent& agent, uint32_t size, const std::vector<std::string>& options,
                  const Environment& extra = {}) {
  std::vector<Process> ranks;
  std::vector<std::string> argv = {HVD_TRAIN_DIGITS};
  argv.insert(argv.end(), options.begin(), options.end());
  for (uint32_t rank = 0; rank < size; ++rank) {
    Environment environment = agent.environment(rank);
    environment.insert(extra.begin(), extra.end());
    ranks.emplace_back(argv, environment);
  }
  for (uint32_t rank = 0; rank < size; ++rank) {
    const Ending ending = ranks[rank].wait(100s);
    CAPTURE(ranks[rank].output());
    CHECK(ending.signal == 0);
    CHECK(ending.exit_code == 0);
    if (rank > 0) CHECK(ranks[rank].output().empty());
  }
  return last_line(ranks[0].output());
}

std::string train_alone(const std::vector<std::string>& options, const Environment& environment) {
  std::vector<std::string> argv = {HVD_TRAIN_DIGITS};
  argv.insert(argv.end(), options.begin(), options.end());
  Process process(argv, environment);
  CHECK(process.wait(100s).exit_code == 0);
  return last_line(process.output());
}

}  // namespace

TEST_CASE("the weights are the same on 1, 2, 3, 4, 8 and 16 ranks and good") {
  const std::string alone = train_alone({}, {});
  CAPTURE(alone);
  CHECK(field(alone, "steps") == "200");
  CHECK(field(alone, "resumed_at") == "0");
  CHECK(field(alone, "redone") == "0");
  CHECK(std::stod(field(alone, "accuracy")) >= 0.95);
  CHECK(field(alone, "sha256").size() == 64);
  for (const uint32_t size : {1u, 2u, 3u, 4u, 8u, 16u}) {
    CAPTURE(size);
    FakeAgent agent({.size = size});
    CHECK(train(agent, size, {}) == alone);
  }
  CHECK(field(train_alone({"--seed", "2"}, {}), "sha256") != field(alone, "sha256"));
}

TEST_CASE("going on from a checkpoint gives the same weights, at another number of ranks too") {
  const TemporaryFolder folder;
  const std::string whole = field(train_alone({"--steps", "60"}, {}), "sha256");
  {
    FakeAgent agent({.size = 4, .checkpoint_dir = folder.path()});
    train(agent, 4, {"--steps", "47", "--checkpoint-every", "20"});
  }
  CHECK(access((folder.path() + "/step-000000020/manifest.json").c_str(), F_OK) == 0);
  const std::string step = folder.path() + "/step-000000040";
  for (const uint32_t size : {4u, 2u}) {
    FakeAgent agent({.size = size, .resume_from = step});
    const std::string line =
        train(agent, size, {"--steps=60"}, {{"HVD_REACHED_STEP", "47"}, {"HVD_RESUME_STEP", "40"}});
    CAPTURE(line);
    CHECK(field(line, "sha256") == whole);
    CHECK(field(line, "resumed_at") == "40");
    CHECK(field(line, "redone") == "7");
  }
  CHECK(field(train_alone({"--steps", "60"}, {{"HVD_RESUME_FROM", step}}), "sha256") == whole);
  Process other({HVD_TRAIN_DIGITS, "--seed", "2"}, {{"HVD_RESUME_FROM", step}});
  CHECK(other.wait(60s).exit_code == 1);
  CHECK(other.output().find("--seed 1") != std::string::npos);
}

TEST_CASE("bad options are one sentence and exit 2") {
  const std::vector<std::vector<std::string>> bad = {
      {"--step", "3"}, {"--steps"}, {"--steps", "three"}, {"--steps=-3"}, {"--seed="}, {"20"}};
  for (const auto& options : bad) {
    std::vector<std::string> argv = {HVD_TRAIN_DIGITS};
    argv.insert(argv.end(), options.begin(), options.end());
    Process process(argv, {});
    CHECK(process.wait(60s).exit_code == 2);
    const std::string text = process.output();
    CAPTURE(text);
    CHECK(text.starts_with("train_digits: "));
    CHECK(text.find('\n') == text.size() - 1);
  }
}
