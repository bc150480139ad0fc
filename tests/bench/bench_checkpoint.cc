// bench_checkpoint FOLDER MIB ROUNDS: what a checkpoint costs a process that is alone, one round
// after the other so that both sides share the machine's moods. Prints a line a round:
//
//   stall     seconds of hvd_checkpoint_save_async, of which the copy is most
//   memcpy    seconds of copying the same arrays to memory that is there
//   persist   seconds until the save is committed, from its call on, without what it waits for
//   raw       seconds of writing as many bytes to a new file, and fsync
//   verify    seconds of verifying the shard, from the page cache
//   read      seconds of reading it in pieces, from the page cache
//
// bench_checkpoint --keep MIB ROUNDS, a rank of a job: what it costs to keep a state in the agent's
// memory, after steps that are long enough for the thread that looks at the copy.
//
//   keep      seconds of hvd_checkpoint_keep
//   memcpy    as above
#include <fcntl.h>
#include <hvd/comm.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/checkpoint_format.h"
#include "base/fd.h"

namespace {

constexpr size_t kArrays = 4;

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "bench_checkpoint: %s\n", text.c_str());
  std::exit(1);
}

void require(hvd_result result) {
  if (result != HVD_OK) die(hvd_last_error());
}

double seconds_of(const std::function<void()>& body) {
  const auto begun = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// The arrays of a state, of a size that no cache holds.
struct State {
  explicit State(size_t bytes) : length(bytes / kArrays / sizeof(float)) {
    for (size_t i = 0; i < kArrays; ++i) {
      values.emplace_back(length);
      for (size_t j = 0; j < length; ++j) values[i][j] = static_cast<float>(i * 31 + j);
    }
    for (size_t i = 0; i < kArrays; ++i) {
      names.push_back("array" + std::to_string(i));
      shapes.push_back(length);
    }
    for (size_t i = 0; i < kArrays; ++i) {
      arrays.push_back({names[i].c_str(), values[i].data(), &shapes[i], 1, HVD_FLOAT32, 0});
    }
  }
  size_t bytes() const { return kArrays * length * sizeof(float); }

  size_t length;
  std::vector<std::vector<float>> values;
  std::vector<std::string> names;
  std::vector<uint64_t> shapes;
  std::vector<hvd_array> arrays;
};

double copy(const State& state, std::vector<char>& target) {
  return seconds_of([&] {
    char* at = target.data();
    for (const auto& values : state.values) {
      std::memcpy(at, values.data(), values.size() * sizeof(float));
      at += values.size() * sizeof(float);
    }
  });
}

double write_raw(const State& state, const std::string& path) {
  return seconds_of([&] {
    const hvd::Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    for (const auto& values : state.values) {
      std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                             values.size() * sizeof(float));
      for (; !bytes.empty(); bytes.remove_prefix(std::min<size_t>(bytes.size(), 1u << 20))) {
        if (!hvd::write_all(fd.get(), bytes.substr(0, 1u << 20))) die("cannot write " + path);
      }
    }
    if (fsync(fd.get()) != 0) die("cannot sync " + path);
  });
}

double read_raw(const std::string& path) {
  static char piece[256u << 10];
  return seconds_of([&] {
    const hvd::Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    while (read(fd.get(), piece, sizeof piece) > 0) continue;
  });
}

double verify(const std::string& folder) {
  const auto text = hvd::read_file(folder + "/manifest.json", hvd::kMaxManifest);
  if (!text) die(text.error().text);
  const auto manifest = hvd::parse_manifest(*text);
  if (!manifest) die(manifest.error().text);
  return seconds_of([&] {
    const auto verified = hvd::verify_shard(folder + "/" + hvd::shard_file(0),
                                            hvd::expected_shard(*manifest, manifest->shards[0]));
    if (!verified) die(verified.error().text);
  });
}

void measure(const State& state, const std::string& folder, uint64_t step,
             std::vector<char>& target) {
  const std::string raw_path = folder + "/raw";
  const std::string checkpoint = folder + "/" + hvd::step_folder(step);
  const double copied = copy(state, target);
  const double raw = write_raw(state, raw_path);
  unlink(raw_path.c_str());
  double stall = 0;
  const double persist = seconds_of([&] {
    stall = seconds_of([&] {
      require(hvd_checkpoint_save_async(step, state.arrays.data(), state.arrays.size(), ""));
    });
    require(hvd_checkpoint_wait());
  });
  const std::string shard = checkpoint + "/" + hvd::shard_file(0);
  const double read = read_raw(shard), verified = verify(checkpoint);
  std::printf("stall %.6f memcpy %.6f persist %.6f raw %.6f verify %.6f read %.6f\n", stall, copied,
              persist - stall, raw, verified, read);
  std::fflush(stdout);
  for (const std::string& file : {shard, checkpoint + "/manifest.json"}) unlink(file.c_str());
  rmdir(checkpoint.c_str());
}

void keep(const State& state, uint64_t step, std::vector<char>& target) {
  const double copied = copy(state, target);
  const double kept = seconds_of(
      [&] { require(hvd_checkpoint_keep(step, state.arrays.data(), state.arrays.size(), "")); });
  std::printf("keep %.6f memcpy %.6f\n", kept, copied);
  std::fflush(stdout);
  constexpr double kStepSecondsPerByte = 0.6e-9;
  std::this_thread::sleep_for(
      std::chrono::duration<double>(kStepSecondsPerByte * static_cast<double>(state.bytes())));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) die("expected FOLDER MIB ROUNDS");
  const std::string folder = argv[1];
  const bool keeps = folder == "--keep";
  if (!keeps) setenv("HVD_CHECKPOINT_DIR", folder.c_str(), 1);
  require(hvd_init());
  const State state(std::strtoull(argv[2], nullptr, 10) << 20);
  std::vector<char> target(state.bytes(), 1);
  const auto rounds = std::strtoull(argv[3], nullptr, 10);
  for (uint64_t round = 1; round <= rounds; ++round) {
    keeps ? keep(state, round, target) : measure(state, folder, round, target);
  }
  require(hvd_finalize());
  return 0;
}
