#include "tests/comm/processes.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <variant>

namespace hvd {

using namespace std::chrono_literals;

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "hvd-comm-test-XXXXXX").string();
  REQUIRE(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Process::Process(const std::vector<std::string>& argv, const Environment& environment)
    : output_(memfd_create("output", MFD_CLOEXEC)) {
  SpawnSpec spec;
  spec.program = argv.front();
  spec.argv = argv;
  for (const auto& [name, value] : environment) spec.environment.push_back(name + "=" + value);
  spec.out = spec.err = output_.get();
  spec.die_with_parent = true;
  SpawnResult result = spawn(spec);
  REQUIRE(std::holds_alternative<Child>(result));
  child_ = std::move(std::get<Child>(result));
}

Process::Process(Process&& other) noexcept
    : child_(std::move(other.child_)), output_(std::move(other.output_)), running_(other.running_) {
  other.running_ = false;
}

Process::~Process() {
  if (!running_) return;
  signal(SIGKILL);
  wait(10s);
}

void Process::signal(int number) const {
  if (running_) kill(child_.pid, number);
}

Ending Process::wait(Duration limit) {
  pollfd item{child_.pidfd.get(), POLLIN, 0};
  if (poll(&item, 1, poll_timeout(now() + limit, now())) != 1) {
    kill(child_.pid, SIGKILL);
    static_cast<void>(dprintf(output_.get(), "[killed by the test: it did not end]\n"));
  }
  running_ = false;
  return reap(child_);
}

std::string Process::output() const {
  std::string text;
  char bytes[4096];
  ssize_t n = 0;
  while ((n = pread(output_.get(), bytes, sizeof bytes, static_cast<off_t>(text.size()))) > 0) {
    text.append(bytes, static_cast<size_t>(n));
  }
  return text;
}

}  // namespace hvd
