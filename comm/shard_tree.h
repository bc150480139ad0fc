// The one order in which shards are summed. A complete binary tree stands over the shard indices
// 0..total-1: node (level, index) covers the shards [index << level, (index + 1) << level), cut off
// at total; its value is left child + right child, or the left one's alone where nothing is right.
// Whoever computes which node, the sum at the root has the same bits.
#pragma once

#include <cstdint>
#include <vector>

namespace hvd {

struct TreeNode {
  uint32_t level = 0;
  uint64_t index = 0;
  friend bool operator==(const TreeNode&, const TreeNode&) = default;
};

struct ShardRange {
  uint64_t first = 0, end = 0;
  uint64_t size() const { return end - first; }
};

// Where piece `part` of `total` things lies when they are cut into `parts` nearly equal runs.
ShardRange cut(uint64_t total, uint64_t part, uint64_t parts);

TreeNode root_of(uint64_t total);

// The fewest nodes that cover exactly the shards in `held`, from left to right.
std::vector<TreeNode> maximal_nodes(ShardRange held, uint64_t total);

// A node's value, in the caller's memory.
template <class T>
struct NodeValue {
  TreeNode node;
  const T* data = nullptr;
};

// out[i] = the value of node `goal` at i, from nodes below it that cover it (or itself). Integers
// wrap. `out` may be one of the values, and must not overlap any other way.
template <class T>
void sum_tree(TreeNode goal, uint64_t total, const std::vector<NodeValue<T>>& known, T* out,
              uint64_t count);

}  // namespace hvd
