// The operators of compiled graphs that run taps. Their names carry a version: compiled code is kept on disk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace amanda::pytorch {

/// What every node gets beside the operands of its operator.
struct Node {
  c10::ArrayRef<at::Tensor> run;  // what begin() returned, if taps share it
  at::Tensor table;
  int64_t slot;
};

/// Through the dispatcher, so that a graph that is traced gets a node. `which`: what the values are among the tensors
/// of the node; empty: all of them. `edited`: those of the values that come back.
void call_look(at::TensorList values, at::IntArrayRef which, c10::SymIntArrayRef numbers, const Node& node);
std::vector<at::Tensor> call_edit(at::TensorList values, at::IntArrayRef which, c10::SymIntArrayRef numbers,
                                  const Node& node, at::IntArrayRef edited);
/// Returns the results, and last what it has recorded.
std::vector<at::Tensor> call_run(at::TensorList values, c10::SymIntArrayRef numbers, const Node& node,
                                 at::IntArrayRef recorded, c10::string_view original, at::IntArrayRef autocast);
/// Returns the gradients of those that were recorded, which are like `likes`.
std::vector<at::Tensor> call_replay(at::TensorList gradients, at::IntArrayRef which, const at::Tensor& recorded,
                                    at::TensorList likes, at::IntArrayRef wanted, const Node& node);

}  // namespace amanda::pytorch
