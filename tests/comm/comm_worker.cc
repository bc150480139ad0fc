// A rank of the process tests: does what its first argument names and says on its standard output
// how that ended. Uses the C interface alone.
#include <hvd/comm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int kFailedAsExpected = 3;

uint32_t rank_of() {
  uint32_t rank = 0;
  hvd_rank(&rank);
  return rank;
}

uint32_t size_of() {
  uint32_t size = 0;
  hvd_size(&size);
  return size;
}

// Ends the process if a call failed: with its result and sentence as the last line.
void need(hvd_result result, const char* what) {
  if (result == HVD_OK) return;
  std::printf("%s: %d: %s\n", what, static_cast<int>(result), hvd_last_error());
  std::fflush(stdout);
  std::_Exit(kFailedAsExpected);
}

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("wrong: %s (last error: %s)\n", what, hvd_last_error());
  std::fflush(stdout);
  std::_Exit(1);
}

// All collectives, small and large, and what they must give.
int collectives() {
  const uint32_t rank = rank_of(), size = size_of();
  const double sum = size * (size + 1) / 2.0;
  for (const size_t count : {0u, 1u, 1000u, 1000000u}) {
    std::vector<float> f(count + 1, static_cast<float>(rank + 1));
    need(hvd_allreduce(f.data(), f.data(), count, HVD_FLOAT32), "allreduce");
    for (size_t i = 0; i < count; ++i) expect(f[i] == sum, "float sum");
    expect(f[count] == rank + 1, "the element behind the buffer");
    std::vector<double> in(count, rank + 1), out(count);
    need(hvd_allreduce(in.data(), out.data(), count, HVD_FLOAT64), "allreduce");
    for (size_t i = 0; i < count; ++i) expect(out[i] == sum, "double sum");
    std::vector<uint8_t> bytes(count, static_cast<uint8_t>(rank));
    need(hvd_broadcast(bytes.data(), count, HVD_UINT8, size - 1), "broadcast");
    for (size_t i = 0; i < count; ++i) expect(bytes[i] == size - 1, "broadcast");
    need(hvd_barrier(), "barrier");
  }
  uint32_t local_rank = 99, local_size = 0;
  expect(hvd_local_rank(&local_rank) == HVD_OK && local_rank == rank, "local rank");
  expect(hvd_local_size(&local_size) == HVD_OK && local_size == size, "local size");
  need(hvd_heartbeat(17), "heartbeat");
  need(hvd_heartbeat(18), "heartbeat");
  need(hvd_finalize(), "finalize");
  expect(hvd_barrier() == HVD_NOT_INITIALIZED, "barrier after finalize");
  expect(hvd_init() == HVD_INVALID_ARGUMENT, "init after finalize");
  std::printf("ok\n");
  return 0;
}

// Arguments that must be refused at once, without the other ranks.
int arguments() {
  float f[8] = {};
  expect(hvd_allreduce(nullptr, f, 2, HVD_FLOAT32) == HVD_INVALID_ARGUMENT, "NULL in");
  expect(hvd_allreduce(f, nullptr, 2, HVD_FLOAT32) == HVD_INVALID_ARGUMENT, "NULL out");
  expect(hvd_allreduce(f, f + 1, 2, HVD_FLOAT32) == HVD_INVALID_ARGUMENT, "overlap");
  expect(hvd_allreduce(f, f, 2, static_cast<hvd_dtype>(99)) == HVD_INVALID_ARGUMENT, "dtype");
  expect(hvd_allreduce(f, f, UINT64_MAX / 2, HVD_FLOAT32) == HVD_INVALID_ARGUMENT, "count");
  expect(hvd_broadcast(f, 2, HVD_FLOAT32, size_of()) == HVD_INVALID_ARGUMENT, "root");
  expect(hvd_allreduce_shards(f, 9, 4, f + 4, 1, HVD_FLOAT32) == HVD_INVALID_ARGUMENT, "shards");
  expect(hvd_allreduce_shards(f, 0, 0, f + 4, 1, HVD_FLOAT32) == HVD_INVALID_ARGUMENT, "none");
  expect(hvd_rank(nullptr) == HVD_INVALID_ARGUMENT, "NULL rank");
  expect(hvd_abort(0, "x") == HVD_INVALID_ARGUMENT, "abort code");
  expect(std::strlen(hvd_last_error()) > 0, "a sentence");
  need(hvd_barrier(), "barrier after refused arguments");
  need(hvd_finalize(), "finalize");
  std::printf("ok\n");
  return 0;
}

// Sums for ever: ends only by a failure.
int loop() {
  std::vector<float> f(100000, 1.0f);
  while (true) need(hvd_allreduce(f.data(), f.data(), f.size(), HVD_FLOAT32), "allreduce");
}

// The last rank comes to nothing any more; all others wait for it.
int stuck() {
  need(hvd_barrier(), "first barrier");
  if (rank_of() == size_of() - 1) {
    while (true) pause();
  }
  need(hvd_barrier(), "barrier");
  return 0;
}

int mismatch() {
  double v[4] = {};
  const hvd_result result = rank_of() == 1 ? hvd_barrier() : hvd_allreduce(v, v, 4, HVD_FLOAT64);
  need(result, "collective");
  return 0;
}

// Rank 1 finalizes and ends well, all others go on.
int leave_early() {
  need(hvd_barrier(), "first barrier");
  if (rank_of() == 1) {
    need(hvd_finalize(), "finalize");
    return 0;
  }
  need(hvd_barrier(), "barrier");
  return 0;
}

// Each rank sends a lot and ends at once; nothing of it may be lost.
int send_and_leave() {
  std::vector<uint8_t> bytes(4000000, static_cast<uint8_t>(rank_of() + 1));
  need(hvd_broadcast(bytes.data(), bytes.size(), HVD_UINT8, 0), "broadcast");
  for (const uint8_t byte : bytes) expect(byte == 1, "broadcast");
  need(hvd_finalize(), "finalize");
  std::printf("ok\n");
  return 0;
}

int forked() {
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = hvd_barrier() == HVD_FORKED && hvd_heartbeat(1) == HVD_FORKED &&
                         hvd_init() == HVD_FORKED && hvd_finalize() == HVD_FORKED;
    _exit(refused && std::strstr(hvd_last_error(), "fork") != nullptr ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child was not refused");
  need(hvd_barrier(), "barrier of the parent");
  need(hvd_finalize(), "finalize");
  std::printf("ok\n");
  return 0;
}

int aborts() {
  need(hvd_barrier(), "first barrier");
  if (rank_of() == 0) {
    need(hvd_abort(42, "the loss is not a number"), "abort");
    expect(hvd_barrier() == HVD_NOT_INITIALIZED, "barrier after abort");
    return 42;
  }
  need(hvd_barrier(), "barrier");
  return 0;
}

struct State {
  std::vector<float> weights = std::vector<float>(1000);
  double rate = 0;
  std::vector<int64_t> own = std::vector<int64_t>(3);
  uint64_t weight_shape[2] = {10, 100}, own_shape[1] = {3};

  std::vector<hvd_array> arrays(bool with_own) {
    std::vector<hvd_array> list = {{"weights", weights.data(), weight_shape, 2, HVD_FLOAT32, 0},
                                   {"rate", &rate, nullptr, 0, HVD_FLOAT64, 0}};
    if (with_own) list.push_back({"own", own.data(), own_shape, 1, HVD_INT64, 1});
    return list;
  }
};

int save(bool with_own) {
  State state;
  for (size_t i = 0; i < 1000; ++i) state.weights[i] = static_cast<float>(i) * 0.5f;
  state.rate = 0.125;
  state.own = {7, 8, static_cast<int64_t>(rank_of())};
  const auto arrays = state.arrays(with_own);
  const std::string note = "note of rank " + std::to_string(rank_of());
  need(hvd_checkpoint_save(100, arrays.data(), arrays.size(), note.c_str()), "save");
  need(hvd_barrier(), "barrier");
  need(hvd_finalize(), "finalize");
  std::printf("ok\n");
  return 0;
}

// Four states; that of step 1 may be refused, which the call after it tells.
int keep() {
  State state;
  const auto arrays = state.arrays(true);
  const auto kept = [&](uint64_t step) {
    state.own[2] = static_cast<int64_t>(step);
    return hvd_checkpoint_keep(step, arrays.data(), arrays.size(), "");
  };
  need(kept(1), "keep");
  const hvd_result second = kept(2);
  if (second == HVD_CHECKPOINT_FAILED) {
    std::printf("%s\n", hvd_last_error());
    need(kept(2), "keep again");
  } else {
    need(second, "keep");
  }
  need(kept(3), "keep");
  need(kept(4), "keep");
  need(hvd_barrier(), "barrier");
  need(hvd_finalize(), "finalize");
  std::printf("ok\n");
  return 0;
}

int load(bool with_own) {
  State state;
  int available = 0;
  uint64_t step = 0;
  need(hvd_checkpoint_available(&available, &step), "available");
  if (available == 0) {
    expect(hvd_checkpoint_load(nullptr, 0, nullptr, 0, nullptr) == HVD_NO_CHECKPOINT, "no load");
    std::printf("none\n");
    need(hvd_finalize(), "finalize");
    return 0;
  }
  expect(step == 100, "step of the folder");
  const auto arrays = state.arrays(with_own);
  char note[64];
  step = 0;
  need(hvd_checkpoint_load(arrays.data(), arrays.size(), note, sizeof note, &step), "load");
  expect(step == 100, "step");
  for (size_t i = 0; i < 1000; ++i) expect(state.weights[i] == i * 0.5f, "weights");
  expect(state.rate == 0.125, "rate");
  if (with_own) expect(state.own[2] == rank_of(), "own array");
  std::printf("ok %s\n", note);
  need(hvd_finalize(), "finalize");
  return 0;
}

// Loads into an array of another size.
int load_wrong() {
  std::vector<float> weights(999, 5.0f);
  const uint64_t shape[1] = {999};
  const hvd_array array = {"weights", weights.data(), shape, 1, HVD_FLOAT32, 0};
  const hvd_result result = hvd_checkpoint_load(&array, 1, nullptr, 0, nullptr);
  for (const float weight : weights) expect(weight == 5.0f, "a failed load changed the array");
  need(result, "load");
  return 0;
}

}  // namespace

int main(int, char** argv) {
  const std::map<std::string, std::function<int()>> scenarios = {
      {"collectives", collectives},
      {"arguments", arguments},
      {"loop", loop},
      {"stuck", stuck},
      {"mismatch", mismatch},
      {"leave_early", leave_early},
      {"send_and_leave", send_and_leave},
      {"forked", forked},
      {"aborts", aborts},
      {"save", [] { return save(false); }},
      {"save_own", [] { return save(true); }},
      {"keep", keep},
      {"load", [] { return load(false); }},
      {"load_own", [] { return load(true); }},
      {"load_wrong", load_wrong}};
  expect(hvd_barrier() == HVD_NOT_INITIALIZED, "barrier before init");
  expect(hvd_heartbeat(1) == HVD_NOT_INITIALIZED, "heartbeat before init");
  need(hvd_init(), "init");
  return scenarios.at(argv[1])();
}
