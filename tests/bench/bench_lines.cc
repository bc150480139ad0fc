// Numbered lines for the bench of output, and their reader.
//
//   bench_lines write BYTES         80-byte lines, the rank and their number in each, to stdout
//   bench_lines check RANKS BYTES   reads stdin: every line of every rank is there once, whole, in
//                                   order, and its rank's prefix is always the same
//   bench_lines count               reads stdin and prints how many bytes it was
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

// "0003 0000000042 xxx...\n"
constexpr size_t kLine = 80;
constexpr size_t kRankDigits = 4, kNumberAt = 5, kNumberDigits = 10;
constexpr size_t kBlock = 1u << 16;

unsigned rank_of_this_process() {
  for (const char* name : {"HVD_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"}) {
    if (const char* value = std::getenv(name)) {
      return static_cast<unsigned>(std::strtoul(value, nullptr, 10));
    }
  }
  return 0;
}

// The first line of a rank, without its newline.
std::string first_line(unsigned rank) {
  char head[32];
  std::snprintf(head, sizeof head, "%04u %010u ", rank, 0u);
  std::string line = head;
  line.resize(kLine - 1, 'x');
  return line;
}

void count_up(char* digits) {
  for (char* digit = digits + kNumberDigits - 1; ++*digit > '9'; --digit) *digit = '0';
}

int write_lines(unsigned long long bytes) {
  std::string line = first_line(rank_of_this_process()) + "\n";
  std::string block;
  for (unsigned long long left = bytes / kLine; left > 0;) {
    block.clear();
    for (; left > 0 && block.size() + kLine <= kBlock; --left) {
      block += line;
      count_up(line.data() + kNumberAt);
    }
    for (std::string_view rest = block; !rest.empty();) {
      const ssize_t n = write(STDOUT_FILENO, rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return 1;
      rest.remove_prefix(static_cast<size_t>(n));
    }
  }
  return 0;
}

struct Rank {
  std::string expected;  // the next line: prefix, which the first line taught us, and text
  unsigned long long seen = 0;
};

bool wrong(const char* what, std::string_view line) {
  std::fprintf(stderr, "bench_lines: %s: '%.*s'\n", what, static_cast<int>(line.size()),
               line.data());
  return false;
}

bool take(std::vector<Rank>& ranks, std::string_view line) {
  if (line.size() < kLine - 1) return wrong("a line is too short", line);
  const std::string_view text = line.substr(line.size() - (kLine - 1));
  unsigned number = 0;
  for (const char digit : text.substr(0, kRankDigits)) {
    number = number * 10 + static_cast<unsigned>(digit - '0');
  }
  if (number >= ranks.size()) return wrong("a line of no rank", line);
  Rank& rank = ranks[number];
  if (rank.seen++ == 0) {
    rank.expected = std::string(line.substr(0, line.size() - (kLine - 1))) + first_line(number);
  }
  if (line != rank.expected) return wrong("a line is torn, lost or out of order", line);
  count_up(rank.expected.data() + rank.expected.size() - (kLine - 1) + kNumberAt);
  return true;
}

int check_lines(size_t count, unsigned long long bytes) {
  std::vector<Rank> ranks(count);
  std::string buffer(1u << 20, '\0');
  size_t have = 0;
  while (true) {
    const ssize_t n = read(STDIN_FILENO, buffer.data() + have, buffer.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    have += static_cast<size_t>(n);
    std::string_view rest(buffer.data(), have);
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      if (!take(ranks, rest.substr(0, end))) return 1;
      rest.remove_prefix(end + 1);
    }
    have = rest.size();
    std::memmove(buffer.data(), rest.data(), have);
  }
  for (const Rank& rank : ranks) {
    if (have > 0 || rank.seen != bytes / kLine) return wrong("lines are missing", "");
  }
  return 0;
}

int count_bytes() {
  std::string buffer(1u << 20, '\0');
  unsigned long long total = 0;
  for (ssize_t n; (n = read(STDIN_FILENO, buffer.data(), buffer.size())) > 0;) {
    total += static_cast<unsigned long long>(n);
  }
  std::printf("%llu\n", total);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  if (verb == "write" && argc == 3) return write_lines(number(2));
  if (verb == "check" && argc == 4) return check_lines(number(2), number(3));
  if (verb == "count" && argc == 2) return count_bytes();
  std::fputs("usage: bench_lines write BYTES | check RANKS BYTES | count\n", stderr);
  return 2;
}
