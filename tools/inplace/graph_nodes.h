// The nodes of a backward graph, by their numbers, for InplaceErrors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace amanda::tools::pytorch {

/// The numbers of the nodes behind some tensors, without those of leaves, which all have one number.
class GraphNodes {
 public:
  explicit GraphNodes(const std::vector<at::Tensor>& tensors);

  bool has(int64_t number) const;

 private:
  std::vector<int64_t> numbers_;  // sorted
};

}  // namespace amanda::tools::pytorch
