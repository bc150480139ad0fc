// Trains a small neural network on the UCI handwritten digits, data parallel, on any number of
// ranks, and comes to the same weights on all of them, bit for bit, whatever is lost on the way:
//
//     hvdlaunch -np 4 --checkpoint-dir /tmp/ckpt -- train_digits --steps 200
//
// The 1,797 images are split once into 1,408 to learn from and 389 to test with. 1,408 is 11
// batches of 128: an epoch is 11 steps, shows each image exactly once, in an order shuffled anew,
// and no batch is short. A batch is 16 shards of 8 images. Each rank computes the gradients of its
// shards, one by one with the same code, and hvd_allreduce_shards adds them in a fixed order, so
// that the number of ranks leaves no trace. Nothing here calls a function whose last bit differs
// between machines.
#include <fcntl.h>
#include <openssl/sha.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <hvd/comm.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

// The data travels inside the program.
asm(".section .rodata\n"
    ".global digits_begin\n.global digits_end\n"
    "digits_begin:\n.incbin \"" HVD_DIGITS_FILE
    "\"\n"
    "digits_end:\n.previous\n");
extern "C" const unsigned char digits_begin[], digits_end[];

namespace {

namespace comm = hvd::comm;

constexpr size_t kPixels = 64, kHidden = 128, kDigits = 10;
constexpr uint32_t kShards = 16;
constexpr size_t kShardSize = 8, kBatch = kShards * kShardSize;
constexpr size_t kTraining = 1408, kBatchesPerEpoch = kTraining / kBatch;
constexpr float kRate = 0.2f, kMomentum = 0.9f;
constexpr uint64_t kSplitSeed = 0xd16175;

// Where each part of the network lies in the vector of all its weights.
constexpr size_t kW1 = 0, kB1 = kW1 + kHidden * kPixels, kW2 = kB1 + kHidden,
                 kB2 = kW2 + kDigits * kHidden, kWeights = kB2 + kDigits;

struct Image {
  std::array<float, kPixels> pixels;
  size_t digit;
};

struct Options {
  uint64_t steps = 200;
  uint64_t checkpoint_every = 50;
  uint64_t step_ms = 0;
  uint64_t seed = 1;
  uint64_t save_on_error = 0;
  uint64_t keep_every = 0;
  std::string samples;
};

[[noreturn]] void die(int code, const std::string& text) {
  std::fprintf(stderr, "train_digits: %s\n", text.c_str());
  std::exit(code);
}

// SplitMix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [-1, 1), exact in a float.
  float symmetric() { return static_cast<float>(next() >> 40) / 8388608.0f - 1.0f; }

 private:
  uint64_t state_;
};

template <class T>
void shuffle(std::vector<T>& items, uint64_t seed) {
  Random random(seed);
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.next() % i]);
}

std::string unpack_digits() {
  std::string text(1u << 20, '\0');
  z_stream stream{};
  stream.next_in = const_cast<unsigned char*>(digits_begin);
  stream.avail_in = static_cast<uInt>(digits_end - digits_begin);
  stream.next_out = reinterpret_cast<unsigned char*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  constexpr int kGzip = 16 + MAX_WBITS;
  const bool good =
      inflateInit2(&stream, kGzip) == Z_OK && inflate(&stream, Z_FINISH) == Z_STREAM_END;
  text.resize(stream.total_out);
  inflateEnd(&stream);
  if (!good) die(1, "the data inside the program is damaged");
  return text;
}

// All images, in the order of the split: the first kTraining are to learn from.
std::vector<Image> load_images() {
  const std::string text = unpack_digits();
  std::vector<Image> images;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    Image& image = images.emplace_back();
    for (size_t i = 0; i <= kPixels; ++i) {
      unsigned value = 0;
      const auto [stop, error] = std::from_chars(at, end, value);
      if (error != std::errc() || stop == end) die(1, "the data inside the program is damaged");
      if (i < kPixels) image.pixels[i] = static_cast<float>(value) / 16.0f;
      if (i == kPixels) image.digit = value;
      at = stop + 1;
    }
  }
  shuffle(images, kSplitSeed);
  return images;
}

std::vector<float> first_weights(uint64_t seed) {
  Random random(seed);
  std::vector<float> weights(kWeights, 0.0f);
  const float scale1 = std::sqrt(6.0f / (kPixels + kHidden));
  const float scale2 = std::sqrt(6.0f / (kHidden + kDigits));
  for (size_t i = kW1; i < kB1; ++i) weights[i] = scale1 * random.symmetric();
  for (size_t i = kW2; i < kB2; ++i) weights[i] = scale2 * random.symmetric();
  return weights;
}

// e^x for x <= 0, from additions and multiplications alone: the C library's differs in its last bit
// between processors.
float exp_of(float x) {
  if (x < -80.0f) return 0.0f;
  const double k = std::floor(x * 1.4426950408889634 + 0.5);
  const double r = x - k * 0.6931471805599453;
  double sum = 1.0;
  for (int i = 11; i > 0; --i) sum = 1.0 + sum * r / i;
  return static_cast<float>(std::ldexp(sum, static_cast<int>(k)));
}

struct Activations {
  std::array<float, kHidden> hidden;
  std::array<float, kDigits> probability;
};

void run_network(const std::vector<float>& weights, const Image& image, Activations& a) {
  for (size_t h = 0; h < kHidden; ++h) {
    float sum = weights[kB1 + h];
    for (size_t p = 0; p < kPixels; ++p) sum += weights[kW1 + h * kPixels + p] * image.pixels[p];
    a.hidden[h] = sum > 0.0f ? sum : 0.0f;
  }
  float top = -INFINITY;
  for (size_t d = 0; d < kDigits; ++d) {
    float sum = weights[kB2 + d];
    for (size_t h = 0; h < kHidden; ++h) sum += weights[kW2 + d * kHidden + h] * a.hidden[h];
    a.probability[d] = sum;
    if (sum > top) top = sum;
  }
  float total = 0.0f;
  for (float& p : a.probability) total += p = exp_of(p - top);
  for (float& p : a.probability) p /= total;
}

// Adds one image's gradient to `gradient`, whose last element sums the loss.
void add_gradient(const std::vector<float>& weights, const Image& image, float* gradient) {
  Activations a;
  run_network(weights, image, a);
  const float likelihood = a.probability[image.digit];
  gradient[kWeights] -= std::log(likelihood > 1e-12f ? likelihood : 1e-12f);
  std::array<float, kHidden> back{};
  for (size_t d = 0; d < kDigits; ++d) {
    const float error = a.probability[d] - (d == image.digit ? 1.0f : 0.0f);
    gradient[kB2 + d] += error;
    for (size_t h = 0; h < kHidden; ++h) {
      gradient[kW2 + d * kHidden + h] += error * a.hidden[h];
      back[h] += error * weights[kW2 + d * kHidden + h];
    }
  }
  for (size_t h = 0; h < kHidden; ++h) {
    if (a.hidden[h] <= 0.0f) continue;
    gradient[kB1 + h] += back[h];
    for (size_t p = 0; p < kPixels; ++p)
      gradient[kW1 + h * kPixels + p] += back[h] * image.pixels[p];
  }
}

double accuracy(const std::vector<float>& weights, const std::vector<Image>& images) {
  size_t right = 0;
  for (size_t i = kTraining; i < images.size(); ++i) {
    Activations a;
    run_network(weights, images[i], a);
    size_t best = 0;
    for (size_t d = 1; d < kDigits; ++d) {
      if (a.probability[d] > a.probability[best]) best = d;
    }
    if (best == images[i].digit) ++right;
  }
  return static_cast<double>(right) / static_cast<double>(images.size() - kTraining);
}

std::string sha256(const std::vector<float>& values) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(values.data()), values.size() * sizeof(float),
         digest);
  std::string hex;
  for (const unsigned char byte : digest) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    hex += two;
  }
  return hex;
}

// One rank's training: what it knows, and the steps it takes.
class Training {
 public:
  explicit Training(const Options& options)
      : options_(options),
        images_(load_images()),
        weights_(first_weights(options.seed)),
        velocity_(kWeights, 0.0f),
        range_(comm::shard_range(kShards)),
        gradients_(range_.here * (kWeights + 1)),
        sum_(kWeights + 1) {}

  // Goes on from the checkpoint, if there is one. Returns the steps that are done.
  uint64_t resume() {
    if (!comm::checkpoint_available()) return 0;
    const comm::Loaded loaded = comm::checkpoint_load(arrays());
    unsigned long long epoch = 0, batch = 0, seed = 0;
    if (std::sscanf(loaded.note.c_str(), kNote, &epoch, &batch, &seed) != 3 ||
        epoch * kBatchesPerEpoch + batch != loaded.step) {
      die(1, "the checkpoint's note is not one of this program: " + loaded.note);
    }
    if (seed != options_.seed) {
      die(1, "the checkpoint was made with --seed " + std::to_string(seed) + ", not --seed " +
                 std::to_string(options_.seed));
    }
    return loaded.step;
  }

  void save(uint64_t done) {
    try {
      comm::checkpoint_save(done, arrays(), note(done));
    } catch (const comm::Failure& failure) {
      // A disk that is full costs the checkpoint, not the work: the one before is still there.
      if (failure.result() != HVD_CHECKPOINT_FAILED) throw;
      std::fprintf(stderr, "train_digits: going on without a checkpoint: %s\n", failure.what());
    }
  }

  // In memory, for the loss of a process and not of a host.
  void keep(uint64_t done) { comm::checkpoint_keep(done, arrays(), note(done)); }

  // Step number `step`, counted from 0. Returns the loss before it.
  double step(uint64_t step) {
    shuffle_for(step / kBatchesPerEpoch);
    const size_t batch = step % kBatchesPerEpoch * kBatch;
    std::fill(gradients_.begin(), gradients_.end(), 0.0f);
    for (uint32_t shard = 0; shard < range_.here; ++shard) {
      const size_t first = batch + (range_.first + shard) * kShardSize;
      for (size_t i = 0; i < kShardSize; ++i) {
        add_gradient(weights_, images_[order_[first + i]], &gradients_[shard * (kWeights + 1)]);
      }
    }
    comm::allreduce_shards(gradients_, kShards, sum_);
    for (size_t i = 0; i < kWeights; ++i) {
      velocity_[i] = kMomentum * velocity_[i] + sum_[i] / kBatch;
      weights_[i] -= kRate * velocity_[i];
    }
    return sum_[kWeights] / kBatch;
  }

  // The images that this rank learns from in a step, by their place in the split.
  std::string samples(uint64_t step) {
    shuffle_for(step / kBatchesPerEpoch);
    const size_t first = step % kBatchesPerEpoch * kBatch + range_.first * kShardSize;
    std::string text;
    for (size_t i = 0; i < range_.here * kShardSize; ++i) {
      text += (i == 0 ? "" : ",") + std::to_string(order_[first + i]);
    }
    return text;
  }

  double test() const { return accuracy(weights_, images_); }
  std::string hash() const { return sha256(weights_); }

 private:
  static constexpr const char* kNote = "{\"epoch\": %llu, \"batch\": %llu, \"seed\": %llu}";

  std::string note(uint64_t done) const {
    char text[128];
    std::snprintf(text, sizeof text, kNote,
                  static_cast<unsigned long long>(done / kBatchesPerEpoch),
                  static_cast<unsigned long long>(done % kBatchesPerEpoch),
                  static_cast<unsigned long long>(options_.seed));
    return text;
  }

  std::vector<comm::Array> arrays() { return {{"weights", weights_}, {"velocity", velocity_}}; }

  // The order of the training images in an epoch depends on seed and epoch only.
  void shuffle_for(uint64_t epoch) {
    if (epoch == epoch_) return;
    epoch_ = epoch;
    order_.resize(kTraining);
    for (size_t i = 0; i < kTraining; ++i) order_[i] = i;
    shuffle(order_, options_.seed * 1000003 + epoch);
  }

  Options options_;
  std::vector<Image> images_;
  std::vector<float> weights_, velocity_;
  comm::ShardRange range_;
  std::vector<float> gradients_, sum_;  // by shard; of all shards. The last element is the loss
  std::vector<size_t> order_;
  uint64_t epoch_ = UINT64_MAX;
};

// Who did what, for those who check it: FOLDER/rank-0003 gets a line for each step, which names
// job, attempt, step and images, and one at the end with the weights' sha256. Each line is one
// write.
class SampleFile {
 public:
  SampleFile(const std::string& folder, uint32_t rank) {
    if (folder.empty()) return;
    char name[32];
    std::snprintf(name, sizeof name, "/rank-%04u", rank);
    fd_ = open((folder + name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0) die(1, folder + name + " cannot be written");
    for (const char* variable : {"HVD_JOB_ID", "HVD_ATTEMPT"}) {
      const char* value = std::getenv(variable);
      who_ += std::string(value != nullptr ? value : "-") + " ";
    }
  }

  bool wanted() const { return fd_ >= 0; }

  void add(const std::string& what) const {
    const std::string line = who_ + what + "\n";
    if (write(fd_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      die(1, "a line of the samples cannot be written");
    }
  }

 private:
  int fd_ = -1;  // until the process ends
  std::string who_;
};

// A line now and then, so that the viewer sees progress and no flood.
class Reporter {
 public:
  void step(uint64_t done, double loss) {
    const auto now = std::chrono::steady_clock::now();
    if (done % 20 != 0 && now - last_ < std::chrono::seconds(1)) return;
    last_ = now;
    std::printf("step %llu loss %.4f\n", static_cast<unsigned long long>(done), loss);
    std::fflush(stdout);
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

bool read_number(std::string_view text, uint64_t& number) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size();
}

uint64_t number_in(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t number = 0;
  return text != nullptr && read_number(text, number) ? number : otherwise;
}

// A rank that wants to save after another's failure must not end of the TERM that comes with it.
volatile std::sig_atomic_t asked_to_end = 0;

void note_term(int) {
  asked_to_end = 1;
}

// Throws when a rank is gone, which is what TERM was for then.
void end_unless_a_rank_is_gone() {
  try {
    comm::barrier();
  } catch (const comm::Failure& failure) {
    if (failure.result() == HVD_PEER_FAILED) throw;
  }
  std::signal(SIGTERM, SIG_DFL);
  std::raise(SIGTERM);
}

void run(const Options& options) {
  if (options.save_on_error > 0) std::signal(SIGTERM, note_term);
  const comm::Session session;
  Training training(options);
  const uint64_t resumed_at = training.resume();
  const bool saves = std::getenv("HVD_CHECKPOINT_DIR") != nullptr && options.checkpoint_every > 0;
  const SampleFile samples(options.samples, session.rank());
  Reporter reporter;
  comm::heartbeat(resumed_at);
  uint64_t done = resumed_at;
  try {
    while (done < options.steps) {
      // Before the step: others may have it, and go on from it, when this rank is killed in it.
      if (samples.wanted()) samples.add(std::to_string(done) + " " + training.samples(done));
      const double loss = training.step(done);
      ++done;
      comm::heartbeat(done);
      if (session.rank() == 0) reporter.step(done, loss);
      std::this_thread::sleep_for(std::chrono::milliseconds(options.step_ms));
      if (saves && done % options.checkpoint_every == 0) training.save(done);
      if (options.keep_every > 0 && done % options.keep_every == 0) training.keep(done);
      if (asked_to_end != 0) end_unless_a_rank_is_gone();
    }
  } catch (const comm::Failure& failure) {
    // No step is half done: what this rank has is the state after `done` of them.
    if (options.save_on_error > 0 && saves && failure.result() == HVD_PEER_FAILED) {
      training.save(done);
    }
    throw;
  }
  if (samples.wanted()) samples.add("end " + training.hash());
  if (session.rank() != 0) return;
  const uint64_t reached = number_in("HVD_REACHED_STEP", 0);
  std::printf("steps=%llu resumed_at=%llu redone=%llu accuracy=%.3f sha256=%s\n",
              static_cast<unsigned long long>(options.steps),
              static_cast<unsigned long long>(resumed_at),
              static_cast<unsigned long long>(reached > resumed_at ? reached - resumed_at : 0),
              training.test(), training.hash().c_str());
  std::fflush(stdout);
}

constexpr const char* kUsage =
    "usage: train_digits [--steps N] [--checkpoint-every K] [--step-ms N] [--seed N]\n"
    "                    [--samples FOLDER]\n"
    "  --steps N             optimizer steps in all (200)\n"
    "  --checkpoint-every K  save after each K steps; 0: never (HVD_CHECKPOINT_EVERY, else 50)\n"
    "  --keep-every K        keep the state in the agents' memory after each K steps; 0: never "
    "(0)\n"
    "  --step-ms N           sleep this long in each step (0)\n"
    "  --seed N              of the first weights and the shuffles (1)\n"
    "  --save-on-error N     1: ranks that are left after a failure save what they have (0)\n"
    "  --samples FOLDER      append to a file for each rank which images it used in which step\n";

Options parse_options(int argc, char** argv) {
  Options options;
  options.checkpoint_every = number_in("HVD_CHECKPOINT_EVERY", options.checkpoint_every);
  const std::pair<std::string_view, uint64_t*> known[] = {
      {"--steps", &options.steps},
      {"--checkpoint-every", &options.checkpoint_every},
      {"--keep-every", &options.keep_every},
      {"--step-ms", &options.step_ms},
      {"--save-on-error", &options.save_on_error},
      {"--seed", &options.seed}};
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--help") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    const size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    uint64_t* number = nullptr;
    for (const auto& [option, value] : known) {
      if (option == name) number = value;
    }
    const bool folder = name == "--samples";
    if (number == nullptr && !folder) die(2, "there is no option '" + std::string(name) + "'");
    std::string_view value;
    if (equals != std::string_view::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < argc) {
      value = argv[++i];
    } else {
      die(2, std::string(name) + " needs a value");
    }
    if (folder) {
      options.samples = value;
    } else if (!read_number(value, *number)) {
      die(2, std::string(name) + " needs a number, not '" + std::string(value) + "'");
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  try {
    run(options);
  } catch (const std::exception& e) {
    die(1, e.what());
  }
  return 0;
}
