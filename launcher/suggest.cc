#include "launcher/suggest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace hvd {

namespace {

// Insertions, deletions and replacements between two words.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// How long the longest piece is that stands in both.
size_t common(std::string_view a, std::string_view b) {
  size_t longest = 0;
  for (size_t start = 0; start < a.size(); ++start) {
    while (start + longest < a.size() &&
           b.find(a.substr(start, longest + 1)) != std::string_view::npos) {
      ++longest;
    }
  }
  return longest;
}

// ": the nearest are 'grace' and 'np'; hvdlaunch(1) names all".
std::string two_nearest(std::string_view word, std::vector<std::string> known) {
  const auto nearer = [word](const std::string& a, const std::string& b) {
    const size_t common_a = common(word, a), common_b = common(word, b);
    return common_a != common_b ? common_a > common_b : distance(word, a) < distance(word, b);
  };
  std::partial_sort(known.begin(), known.begin() + 2, known.end(), nearer);
  return ": the nearest are '" + known[0] + "' and '" + known[1] + "'; hvdlaunch(1) names all";
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kLongestWord = 64;
  if (word.size() > kLongestWord) return "";
  std::string best;
  size_t best_distance = std::min<size_t>(2, (word.size() + 1) / 2) + 1;
  for (const std::string& candidate : known) {
    const size_t d = distance(word, candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  if (!best.empty() || word.size() < 3) return best;
  // An abbreviation is no typing error, but it names one word only.
  for (const std::string& candidate : known) {
    if (!candidate.starts_with(word)) continue;
    if (!best.empty()) return "";
    best = candidate;
  }
  return best;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  if (!near.empty()) return ": did you mean '" + near + "'?";
  constexpr size_t kMostNamed = 12;
  constexpr size_t kLongestWord = 64;
  if (known.size() > kMostNamed) return two_nearest(word.substr(0, kLongestWord), known);
  std::string text = ": expected one of ";
  for (size_t i = 0; i < known.size(); ++i) text += (i > 0 ? ", " : "") + known[i];
  return text;
}

}  // namespace hvd
