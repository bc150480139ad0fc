#include "comm/shard_tree.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace hvd {

namespace {

ShardRange covered(TreeNode node, uint64_t total) {
  const uint64_t first = std::min(node.index << node.level, total);
  return {first, std::min(total, (node.index + 1) << node.level)};
}

TreeNode left_of(TreeNode node) {
  return {node.level - 1, node.index * 2};
}
TreeNode right_of(TreeNode node) {
  return {node.level - 1, node.index * 2 + 1};
}

void collect(TreeNode node, ShardRange held, uint64_t total, std::vector<TreeNode>& nodes) {
  const ShardRange range = covered(node, total);
  if (range.size() == 0 || range.end <= held.first || held.end <= range.first) return;
  if (held.first <= range.first && range.end <= held.end) {
    nodes.push_back(node);
    return;
  }
  collect(left_of(node), held, total, nodes);
  collect(right_of(node), held, total, nodes);
}

}  // namespace

ShardRange cut(uint64_t total, uint64_t part, uint64_t parts) {
  // floor(total * part / parts), without the product.
  const uint64_t whole = total / parts;
  const uint64_t rest = total % parts;
  return {whole * part + rest * part / parts, whole * (part + 1) + rest * (part + 1) / parts};
}

TreeNode root_of(uint64_t total) {
  uint32_t level = 0;
  while ((uint64_t{1} << level) < total) ++level;
  return {level, 0};
}

std::vector<TreeNode> maximal_nodes(ShardRange held, uint64_t total) {
  std::vector<TreeNode> nodes;
  if (held.size() > 0) collect(root_of(total), held, total, nodes);
  return nodes;
}

namespace {

// Elements summed at a time: few enough for all of a block's intermediate sums to stay in cache.
constexpr uint64_t kBlock = 2048;

// A value that moves along with the block (a node's data) or one of the block's scratch arrays.
template <class T>
struct Operand {
  const T* data = nullptr;
  uint32_t slot = 0;  // when data is null
};

// One addition of the tree, into a scratch array.
template <class T>
struct Addition {
  Operand<T> left, right;
  uint32_t slot = 0;
};

// The additions that make a node, in an order that a block can run through.
template <class T>
class Plan {
 public:
  Plan(uint64_t total, std::vector<NodeValue<T>> known) : total_(total), known_(std::move(known)) {
    std::sort(known_.begin(), known_.end(), before);
  }

  Operand<T> make(TreeNode node, uint32_t slot) {
    const NodeValue<T> wanted{node, nullptr};
    const auto found = std::lower_bound(known_.begin(), known_.end(), wanted, before);
    if (found != known_.end() && found->node == node) return {found->data, 0};
    HVD_CHECK(node.level > 0);
    const Operand<T> left = make(left_of(node), slot);
    if (covered(right_of(node), total_).size() == 0) return left;
    const Operand<T> right = make(right_of(node), slot + 1);
    additions_.push_back({left, right, slot});
    slots_ = std::max(slots_, slot + 1);
    return {nullptr, slot};
  }

  const std::vector<Addition<T>>& additions() const { return additions_; }
  uint32_t slots() const { return slots_; }

 private:
  static bool before(const NodeValue<T>& a, const NodeValue<T>& b) {
    return std::pair(a.node.level, a.node.index) < std::pair(b.node.level, b.node.index);
  }

  uint64_t total_;
  std::vector<NodeValue<T>> known_;
  std::vector<Addition<T>> additions_;
  uint32_t slots_ = 0;
};

// The arrays are the same or apart, so that no element depends on another one.
template <class T>
void add(const T* left, const T* right, T* out, uint64_t count) {
#pragma GCC ivdep
  for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<T>(left[i] + right[i]);
}

}  // namespace

template <class T>
void sum_tree(TreeNode goal, uint64_t total, const std::vector<NodeValue<T>>& known, T* out,
              uint64_t count) {
  Plan<T> plan(total, known);
  const Operand<T> result = plan.make(goal, 0);
  if (result.data != nullptr) {
    if (result.data != out && count > 0) std::memmove(out, result.data, count * sizeof(T));
    return;
  }
  std::vector<T> scratch(plan.slots() * kBlock);
  for (uint64_t begin = 0; begin < count; begin += kBlock) {
    const auto at = [&](Operand<T> operand) -> const T* {
      return operand.data != nullptr ? operand.data + begin : &scratch[operand.slot * kBlock];
    };
    for (const Addition<T>& addition : plan.additions()) {
      // Only the last addition writes to `out`, which may be one of the values: all others of this
      // block have read theirs by then.
      const bool last = &addition == &plan.additions().back();
      add(at(addition.left), at(addition.right),
          last ? out + begin : &scratch[addition.slot * kBlock], std::min(kBlock, count - begin));
    }
  }
}

template void sum_tree(TreeNode, uint64_t, const std::vector<NodeValue<float>>&, float*, uint64_t);
template void sum_tree(TreeNode, uint64_t, const std::vector<NodeValue<double>>&, double*,
                       uint64_t);
template void sum_tree(TreeNode, uint64_t, const std::vector<NodeValue<uint32_t>>&, uint32_t*,
                       uint64_t);
template void sum_tree(TreeNode, uint64_t, const std::vector<NodeValue<uint64_t>>&, uint64_t*,
                       uint64_t);
template void sum_tree(TreeNode, uint64_t, const std::vector<NodeValue<uint8_t>>&, uint8_t*,
                       uint64_t);

}  // namespace hvd
