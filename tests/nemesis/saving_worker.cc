// saving_worker STEPS ACKS: a rank that saves after every step, and the last step twice. Each save
// that was acknowledged is told by a line in the file ACKS. With SAVES_IN_MEMORY it keeps its state
// in its agent's memory instead, and a step is acknowledged when the next can be kept. What was
// acknowledged before is printed at the start. The state follows from rank and step alone, so that
// another one is found out when it is loaded.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <hvd/comm.hpp>
#include <string>
#include <vector>

namespace comm = hvd::comm;

namespace {

std::vector<float> shared_state(uint64_t step) {
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(step * 1000 + i);
  return values;
}

std::vector<double> own_state(uint64_t step, uint32_t rank) {
  return {static_cast<double>(step), static_cast<double>(rank)};
}

uint64_t resume(uint32_t rank) {
  if (!comm::checkpoint_available()) return 0;
  std::vector<float> shared(1000);
  std::vector<double> own(2);
  const comm::Loaded loaded = comm::checkpoint_load({{"shared", shared}, {"own", own, true}});
  if (shared != shared_state(loaded.step) || own != own_state(loaded.step, rank)) {
    std::fprintf(stderr, "saving_worker: the state of step %llu is another one\n",
                 static_cast<unsigned long long>(loaded.step));
    std::exit(3);
  }
  return loaded.step;
}

// Whether the call was good; a refusal is printed.
template <class Call>
bool accepted(uint64_t step, Call call) {
  try {
    call();
    return true;
  } catch (const comm::Failure& failure) {
    if (failure.result() != HVD_CHECKPOINT_FAILED) throw;
    std::printf("refused %llu: %s\n", static_cast<unsigned long long>(step), failure.what());
    std::fflush(stdout);
    return false;
  }
}

void save(uint64_t step, uint32_t rank, int acks) {
  std::vector<float> shared = shared_state(step);
  std::vector<double> own = own_state(step, rank);
  const std::vector<comm::Array> arrays = {{"shared", shared}, {"own", own, true}};
  const bool saved = accepted(step, [&] {
    if (std::getenv("SAVES_ASIDE") == nullptr) return comm::checkpoint_save(step, arrays, "");
    comm::checkpoint_save_async(step, arrays, "");
    // It was copied: what becomes of the arrays is no matter.
    std::fill(shared.begin(), shared.end(), -1.0f);
    comm::checkpoint_wait();
  });
  if (!saved) return;
  const std::string line = std::to_string(step) + "\n";
  if (write(acks, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::exit(4);
}

void keep(uint64_t step, uint32_t rank, int acks) {
  std::vector<float> shared = shared_state(step);
  std::vector<double> own = own_state(step, rank);
  comm::checkpoint_keep(step, {{"shared", shared}, {"own", own, true}}, "");
  // It was copied: what becomes of the arrays is no matter.
  std::fill(shared.begin(), shared.end(), -1.0f);
  const std::string line = std::to_string(step - 1) + "\n";
  if (write(acks, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::exit(4);
}

uint64_t newest_acknowledged(const char* path) {
  uint64_t newest = 0, step = 0;
  std::ifstream file(path);
  while (file >> step) newest = std::max(newest, step);
  return newest;
}

void run(uint64_t steps, const char* path) {
  const uint64_t told = newest_acknowledged(path);
  const int acks = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (acks < 0) std::exit(4);
  const comm::Session session;
  const uint64_t from = resume(session.rank());
  if (session.rank() == 0) {
    std::printf("acknowledged %llu\nfrom %llu\n", static_cast<unsigned long long>(told),
                static_cast<unsigned long long>(from));
  }
  std::fflush(stdout);
  const bool in_memory = std::getenv("SAVES_IN_MEMORY") != nullptr;
  for (uint64_t step = from + 1; step <= steps; ++step) {
    comm::heartbeat(step);
    in_memory ? keep(step, session.rank(), acks) : save(step, session.rank(), acks);
  }
  if (!in_memory) save(steps, session.rank(), acks);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    run(std::strtoull(argv[1], nullptr, 10), argv[2]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "saving_worker: %s\n", e.what());
    return 1;
  }
}
