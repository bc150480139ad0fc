// Identical lines of many ranks as one line (--fold). Pure; time is an argument.
//
// A line waits a moment for other ranks to say the same. The lines of each rank stay in order: it
// joins only lines that stand behind what it said before, and a line of its own is put right there,
// so that what other ranks said after their own can still be joined. What waits is bounded: beyond
// that the oldest leaves early.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/time.h"

namespace hvd {

class LineFolder {
 public:
  // How long a line waits at most, how many bytes do, with what each line costs
  // beside its text, and how many lines ahead a rank looks for its own.
  static constexpr Duration kWindow = std::chrono::milliseconds(300);
  static constexpr size_t kMost = 1u << 20;
  static constexpr int kLookAhead = 1000;

  struct Folded {
    std::string text;
    std::string prefix;  // of the first rank that said it
    size_t count;        // of ranks that said it
  };

  // `ranks`: a line that so many said waits for nobody else.
  explicit LineFolder(size_t ranks) : ranks_(ranks) {}

  void put(uint32_t rank, std::string_view prefix, std::string_view line, Time now);
  // The next line that need not wait any more, if there is one; with `all` any.
  std::optional<Folded> take(Time now, bool all);
  std::optional<Time> deadline() const;

 private:
  struct Group {
    size_t hash;
    std::string text, prefix;
    std::vector<uint32_t> ranks;
    Time since;  // never before that of the group in front
  };
  using Groups = std::list<Group>;

  // In bytes.
  static size_t cost(const Group& group);

  size_t ranks_;
  Groups groups_;
  size_t bytes_ = 0;
  std::unordered_map<uint32_t, Groups::iterator> last_;  // of each rank, while it waits
};

}  // namespace hvd
