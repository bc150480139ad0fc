// What the bench of supervision trains: steps of a fixed amount of arithmetic and an allreduce.
// Rank 0 appends to FILE, as 8 bytes each, the times of CLOCK_BOOTTIME in nanoseconds at which its
// steps ended.
//
//     bench_steps FILE ROUNDS
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <hvd/comm.hpp>
#include <stdexcept>
#include <vector>

namespace {

namespace comm = hvd::comm;

constexpr size_t kFlush = 256;  // times

int64_t boot_ns() {
  timespec time{};
  clock_gettime(CLOCK_BOOTTIME, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

void train(const char* path, long rounds) {
  const comm::Session session;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) throw std::runtime_error(std::string("cannot write ") + path);
  std::vector<float> gradient(4096, 1.0f);
  std::vector<int64_t> times;
  for (uint64_t step = 1;; ++step) {
    for (long round = 0; round < rounds; ++round) {
      for (float& value : gradient) value = value * 0.999f + 0.001f;
    }
    comm::allreduce(gradient.data(), gradient.data(), gradient.size());
    for (float& value : gradient) value /= static_cast<float>(session.size());
    comm::heartbeat(step);
    if (session.rank() != 0) continue;
    times.push_back(boot_ns());
    if (times.size() < kFlush) continue;
    const auto bytes = static_cast<ssize_t>(times.size() * sizeof times[0]);
    if (write(file, times.data(), times.size() * sizeof times[0]) != bytes) {
      throw std::runtime_error(std::string("cannot write ") + path);
    }
    times.clear();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    train(argv[1], std::atol(argv[2]));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_steps: %s\n", e.what());
    return 1;
  }
}
