// What the bench of recovery trains: steps of an allreduce and a pause, a checkpoint now and then.
// Each rank writes a file FOLDER/ATTEMPT-RANK with the time of CLOCK_BOOTTIME in nanoseconds at
// which its first step of an attempt was done by all.
//
//     bench_trainer FOLDER STEP_MS STATE_KIB CHECKPOINT_EVERY
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <hvd/comm.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace comm = hvd::comm;

long long boot_ns() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void note_first_step(const std::string& folder) {
  const std::string name =
      folder + "/" + std::getenv("HVD_ATTEMPT") + "-" + std::getenv("HVD_RANK");
  const std::string draft = name + ".new";
  std::FILE* file = std::fopen(draft.c_str(), "w");
  if (file == nullptr) throw std::runtime_error("cannot write " + draft);
  std::fprintf(file, "%lld\n", boot_ns());
  std::fclose(file);
  if (std::rename(draft.c_str(), name.c_str()) != 0) {
    throw std::runtime_error("cannot rename " + draft);
  }
}

void train(const std::string& folder, long step_ms, size_t state_kib, uint64_t every) {
  const comm::Session session;
  std::vector<float> state(state_kib * 1024 / sizeof(float), 1.0f), gradient(1024, 1.0f);
  uint64_t step = 0;
  if (comm::checkpoint_available()) step = comm::checkpoint_load({{"state", state}}).step;
  for (bool first = true;; first = false) {
    comm::allreduce(gradient.data(), gradient.data(), gradient.size());
    std::fill(gradient.begin(), gradient.end(), 1.0f);
    if (first) note_first_step(folder);
    comm::heartbeat(++step);
    std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));
    if (step % every == 0) comm::checkpoint_save(step, {{"state", state}}, "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    train(argv[1], std::atol(argv[2]), std::strtoull(argv[3], nullptr, 10),
          std::strtoull(argv[4], nullptr, 10));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_trainer: %s\n", e.what());
    return 1;
  }
}
