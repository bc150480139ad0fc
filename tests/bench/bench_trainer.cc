// What the bench of recovery trains: steps of an allreduce and a pause, a checkpoint now and then.
// FILE holds a number of 8 bytes for each rank of attempt 0, then of attempt 1, and so on: the time
// of CLOCK_BOOTTIME in nanoseconds at which its first step of that attempt was done by all.
//
//     bench_trainer FILE STEP_MS STATE_KIB CHECKPOINT_EVERY
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <hvd/comm.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace comm = hvd::comm;

void note_first_step(const std::string& path, uint32_t rank, uint32_t size) {
  timespec time{};
  clock_gettime(CLOCK_BOOTTIME, &time);
  const int64_t ns = time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  const off_t place = (std::atol(std::getenv("HVD_ATTEMPT")) * size + rank) * sizeof ns;
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0 || pwrite(file, &ns, sizeof ns, place) != sizeof ns) {
    throw std::runtime_error("cannot write " + path);
  }
  close(file);
}

void train(const std::string& file, long step_ms, size_t state_kib, uint64_t every) {
  const comm::Session session;
  std::vector<float> state(state_kib * 1024 / sizeof(float), 1.0f), gradient(1024, 1.0f);
  uint64_t step = 0;
  if (comm::checkpoint_available()) step = comm::checkpoint_load({{"state", state}}).step;
  for (bool first = true;; first = false) {
    comm::allreduce(gradient.data(), gradient.data(), gradient.size());
    std::fill(gradient.begin(), gradient.end(), 1.0f);
    if (first) note_first_step(file, session.rank(), session.size());
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
