// The collectives over links in memory, ranks as threads.
#include "comm/collectives.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "comm/shard_tree.h"
#include "tests/comm/memory_links.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// Values whose sum depends on the order of its additions in nearly every element.
float value_of(uint64_t shard, uint64_t i) {
  uint64_t z = (shard * 1000003 + i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  const int exponent = static_cast<int>(z % 24) - 12;
  return std::ldexp(static_cast<float>(z >> 40) / 16777216.0f - 0.5f, exponent);
}

// The tree, written down once more in the simplest way: the left half is the largest power of two.
template <class T>
T tree_sum(const std::vector<T>& shards, size_t first, size_t size) {
  if (size == 1) return shards[first];
  size_t half = 1;
  while (half * 2 < size) half *= 2;
  return tree_sum(shards, first, half) + tree_sum(shards, first + half, size - half);
}

template <class T>
std::vector<T> expected_sum(uint64_t total, uint64_t count) {
  std::vector<T> sum(count);
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<T> shards;
    for (uint64_t s = 0; s < total; ++s) shards.push_back(static_cast<T>(value_of(s, i)));
    sum[i] = tree_sum(shards, 0, total);
  }
  return sum;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

std::string all_texts(const std::vector<Outcome>& outcomes) {
  std::string text;
  for (const Outcome& outcome : outcomes) text += outcome.text() + "\n";
  return text;
}

template <class T>
void check_shards(uint32_t size, uint32_t total, uint64_t count, hvd_dtype dtype) {
  CAPTURE(size);
  CAPTURE(total);
  CAPTURE(count);
  const std::vector<T> expected = expected_sum<T>(total, count);
  MemoryNet net(size, 10007);
  std::vector<std::vector<T>> sums(size, std::vector<T>(count));
  const auto outcomes = run_ranks(net, [&](uint32_t rank, Links& links) {
    Communicator communicator(links, {});
    const ShardRange held = cut(total, rank, size);
    std::vector<T> shards;
    for (uint64_t s = held.first; s < held.end; ++s) {
      for (uint64_t i = 0; i < count; ++i) shards.push_back(static_cast<T>(value_of(s, i)));
    }
    return communicator.allreduce_shards(shards.data(), total, sums[rank].data(), count, dtype);
  });
  for (uint32_t rank = 0; rank < size; ++rank) {
    CAPTURE(rank);
    CHECK_MESSAGE(outcomes[rank].ok(), outcomes[rank].text());
    CHECK(same_bits(sums[rank], expected));
  }
}

}  // namespace

TEST_CASE("shards sum to the same bits on any number of ranks") {
  for (uint32_t size = 1; size <= 9; ++size) {
    for (const uint32_t total : {1u, 2u, 3u, 5u, 7u, 8u, 16u, 17u}) {
      check_shards<float>(size, total, 100, HVD_FLOAT32);   // given whole to every rank
      check_shards<float>(size, total, 5000, HVD_FLOAT32);  // cut into chunks, of several blocks
    }
  }
  check_shards<double>(3, 16, 5001, HVD_FLOAT64);
  check_shards<float>(16, 16, 5001, HVD_FLOAT32);
  check_shards<float>(5, 16, 1, HVD_FLOAT32);
}

TEST_CASE("the order of the sum matters to the values that the tests use") {
  const std::vector<float> tree = expected_sum<float>(16, 1000);
  size_t differ = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    float serial = 0;
    for (uint64_t s = 0; s < 16; ++s) serial += value_of(s, i);
    if (serial != tree[i]) ++differ;
  }
  CHECK(differ > 200);
}

TEST_CASE("allreduce in place and out of place, small, large and empty") {
  for (uint32_t size = 1; size <= 9; ++size) {
    for (const uint64_t count : {0u, 1u, 7u, 2000u, 20000u}) {
      CAPTURE(size);
      CAPTURE(count);
      const std::vector<float> expected = expected_sum<float>(size, count);
      MemoryNet net(size, 4096);
      const auto outcomes = run_ranks(net, [&](uint32_t rank, Links& links) -> Outcome {
        Communicator communicator(links, {});
        std::vector<float> in(count), out(count);
        for (uint64_t i = 0; i < count; ++i) in[i] = value_of(rank, i);
        const std::vector<float> before = in;
        Outcome outcome = communicator.allreduce(in.data(), out.data(), count, HVD_FLOAT32);
        if (!outcome) return outcome;
        if (!same_bits(in, before)) return {HVD_SYSTEM_ERROR, "the input was changed"};
        if (!same_bits(out, expected)) return {HVD_SYSTEM_ERROR, "the sum is wrong"};
        outcome = communicator.allreduce(in.data(), in.data(), count, HVD_FLOAT32);
        if (!same_bits(in, expected)) return {HVD_SYSTEM_ERROR, "the sum in place is wrong"};
        return outcome;
      });
      CHECK(all_texts(outcomes) == std::string(size, '\n'));
    }
  }
}

TEST_CASE("integers wrap") {
  MemoryNet net(3, 64);
  const auto outcomes = run_ranks(net, [&](uint32_t, Links& links) -> Outcome {
    Communicator communicator(links, {});
    int32_t number = INT32_MAX;
    uint8_t byte = 200;
    int64_t wide = INT64_MIN;
    Outcome outcome = communicator.allreduce(&number, &number, 1, HVD_INT32);
    if (outcome) outcome = communicator.allreduce(&byte, &byte, 1, HVD_UINT8);
    if (outcome) outcome = communicator.allreduce(&wide, &wide, 1, HVD_INT64);
    if (!outcome) return outcome;
    const bool right = number == INT32_MAX - 2 && byte == 88 && wide == INT64_MIN;
    return right ? Outcome() : Outcome(HVD_SYSTEM_ERROR, "a sum is wrong");
  });
  CHECK(all_texts(outcomes) == "\n\n\n");
}

TEST_CASE("broadcast from every root, in pieces") {
  for (uint32_t size = 1; size <= 9; ++size) {
    for (uint32_t root = 0; root < size; ++root) {
      for (const size_t bytes : {0u, 1u, 3000000u}) {
        if (bytes > 1 && size != 1 && size != 6) continue;
        CAPTURE(size);
        CAPTURE(root);
        MemoryNet net(size, 300007);
        const auto outcomes = run_ranks(net, [&](uint32_t rank, Links& links) -> Outcome {
          Communicator communicator(links, {});
          std::vector<char> buffer(bytes);
          const auto letter = [&](size_t i) { return static_cast<char>(i * 7 + root); };
          for (size_t i = 0; i < bytes && rank == root; ++i) buffer[i] = letter(i);
          const Outcome outcome = communicator.broadcast(buffer.data(), bytes, HVD_UINT8, root);
          for (size_t i = 0; i < bytes; ++i) {
            if (buffer[i] != letter(i)) return {HVD_SYSTEM_ERROR, "wrong data"};
          }
          return outcome;
        });
        CHECK(all_texts(outcomes) == std::string(size, '\n'));
      }
    }
  }
}

TEST_CASE("no rank leaves a barrier before all have come") {
  MemoryNet net(5, 100);
  std::atomic<int> arrived = 0;
  const auto outcomes = run_ranks(net, [&](uint32_t, Links& links) -> Outcome {
    Communicator communicator(links, {});
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      const Outcome outcome = communicator.barrier();
      if (!outcome) return outcome;
      if (arrived < 5 * round) return {HVD_SYSTEM_ERROR, "left too early"};
      const Outcome again = communicator.barrier();
      if (!again) return again;
    }
    return {};
  });
  CHECK(all_texts(outcomes) == std::string(5, '\n'));
}

TEST_CASE("a different call is an error on every rank that names both sides") {
  MemoryNet net(4, 4096);
  std::vector<Outcome> later(4);
  const auto outcomes = run_ranks(net, [&](uint32_t rank, Links& links) {
    Communicator communicator(links, {});
    float values[10] = {};
    const Outcome outcome = rank == 2 ? communicator.broadcast(values, 10, HVD_FLOAT32, 1)
                                      : communicator.allreduce(values, values, 10, HVD_FLOAT32);
    later[rank] = communicator.barrier();
    return outcome;
  });
  for (uint32_t rank = 0; rank < 4; ++rank) {
    CHECK(outcomes[rank].code() == HVD_MISMATCH);
    CHECK(later[rank].code() == HVD_MISMATCH);
    const std::string& text = outcomes[rank].text();
    CAPTURE(text);
    CHECK(text.find("rank 2 calls broadcast of 10 float32 from rank 1") != std::string::npos);
    CHECK(text.find(" calls allreduce of 10 float32") != std::string::npos);
  }
}

TEST_CASE("counts, dtypes, roots, shards and sequence are compared") {
  const auto mismatch = [](auto call) {
    MemoryNet net(2, 4096);
    const auto outcomes = run_ranks(net, [&](uint32_t rank, Links& links) {
      Communicator communicator(links, {});
      return call(rank, communicator);
    });
    return outcomes[0].code() == HVD_MISMATCH && outcomes[1].code() == HVD_MISMATCH;
  };
  double v[64] = {};
  CHECK(mismatch([&](uint32_t r, Communicator& c) {
    return c.allreduce(v + 8 * r, v + 8 * r, 4 + r, HVD_FLOAT32);
  }));
  CHECK(mismatch([&](uint32_t r, Communicator& c) {
    return c.allreduce(v + 8 * r, v + 8 * r, 4, r == 0 ? HVD_FLOAT32 : HVD_FLOAT64);
  }));
  CHECK(mismatch([&](uint32_t r, Communicator& c) { return c.broadcast(v, 0, HVD_UINT8, r); }));
  CHECK(mismatch([&](uint32_t r, Communicator& c) {
    return c.allreduce_shards(v + 16 * r, 2 + 2 * r, v + 32 + 8 * r, 4, HVD_FLOAT32);
  }));
}

TEST_CASE("a limit ends the wait and names who is missing") {
  MemoryNet net(4, 4096);
  std::atomic<int> ended = 0;
  const auto outcomes = run_ranks(net, [&](uint32_t rank, Links& links) -> Outcome {
    Communicator communicator(links, {200ms, 1min, nullptr});
    if (rank == 1 || rank == 3) {
      const Time deadline = now() + 20s;
      while (ended < 2 && now() < deadline) std::this_thread::yield();
      return {};
    }
    const Outcome outcome = communicator.barrier();
    ++ended;
    return outcome;
  });
  // The first one that ends closes its links; the other may see that before its own limit.
  const Outcome& first = outcomes[0].code() == HVD_TIMED_OUT ? outcomes[0] : outcomes[2];
  CHECK(first.code() == HVD_TIMED_OUT);
  CAPTURE(first.text());
  CHECK(first.text().find("ranks 1 and 3") != std::string::npos);
  CHECK(!outcomes[0].ok());
  CHECK(!outcomes[2].ok());
}

TEST_CASE("a long wait is told, at doubling intervals, with who is missing") {
  MemoryNet net(2, 4096);
  std::vector<std::string> lines;
  std::atomic<bool> ended = false;
  const auto outcomes = run_ranks(net, [&](uint32_t rank, Links& links) -> Outcome {
    if (rank == 1) {
      const Time deadline = now() + 20s;
      while (!ended && now() < deadline) std::this_thread::sleep_for(1ms);
      return {};
    }
    const WaitLimits limits{1s, 100ms, [&](const std::string& line) { lines.push_back(line); }};
    Communicator communicator(links, limits);
    const Outcome outcome = communicator.barrier();
    ended = true;
    return outcome;
  });
  CHECK(outcomes[0].code() == HVD_TIMED_OUT);
  // At 0.1, 0.2, 0.4 and 0.8 s of 1 s; a busy machine may be late for one of them.
  CHECK(lines.size() >= 3);
  CHECK(lines.size() <= 4);
  CHECK(lines.front().find("in barrier (collective 0) for rank 1") != std::string::npos);
}

TEST_CASE("news of a lost rank ends a collective of those who do not wait for it") {
  MemoryNet net(4, 4096);
  std::atomic<int> waiting = 0;
  const auto outcomes = run_ranks(net, [&](uint32_t rank, Links& links) -> Outcome {
    Communicator communicator(links, {});
    if (rank == 3) {
      const Time deadline = now() + 20s;
      while (waiting < 3 && now() < deadline) std::this_thread::yield();
      net.tell({HVD_PEER_FAILED, "rank 3 is gone"});
      return {};
    }
    ++waiting;
    return communicator.barrier();
  });
  for (uint32_t rank = 0; rank < 3; ++rank) CHECK(outcomes[rank].text() == "rank 3 is gone");
}

TEST_CASE("a rank that finalized is named by those that go on") {
  MemoryNet net(3, 4096);
  const auto outcomes = run_ranks(net, [&](uint32_t rank, Links& links) -> Outcome {
    Communicator communicator(links, {});
    const Outcome together = communicator.barrier();
    if (!together) return together;
    if (rank == 1) {
      communicator.finish(now() + 1s);
      return communicator.barrier();
    }
    return communicator.barrier();
  });
  CHECK(outcomes[1].code() == HVD_NOT_INITIALIZED);
  CHECK(outcomes[0].code() == HVD_MISMATCH);
  CHECK(outcomes[0].text().find("rank 1 calls finalize") != std::string::npos);
  CHECK(outcomes[2].text().find("rank 1 calls finalize") != std::string::npos);
}

TEST_CASE("maximal nodes cover what is held, and nothing else") {
  for (uint64_t total = 1; total <= 33; ++total) {
    for (uint64_t first = 0; first < total; ++first) {
      for (uint64_t end = first + 1; end <= total; ++end) {
        uint64_t at = first;
        for (const TreeNode node : maximal_nodes({first, end}, total)) {
          REQUIRE((node.index << node.level) == at);
          at = std::min(total, (node.index + 1) << node.level);
        }
        REQUIRE(at == end);
      }
    }
    CHECK(maximal_nodes({0, total}, total).size() == 1);
  }
}
