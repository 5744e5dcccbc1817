// The operators of compiled graphs that run taps. Their names carry a version: compiled code is kept on disk.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace amanda::pytorch {

/// The arguments of every node, in addition to the operands of its operator.
struct Node {
  c10::ArrayRef<at::Tensor> run;  // the result of begin(), if taps share it
  at::Tensor table;
  int64_t slot;
};

/// These functions call through the dispatcher, so that a graph that is traced gets a node. `which`: the positions of
/// the values among the tensors of the node; if it is empty, the values are all of them. `edited`: the values that are
/// returned.
void call_look(at::TensorList values, at::IntArrayRef which, c10::SymIntArrayRef numbers, const Node& node);
std::vector<at::Tensor> call_edit(at::TensorList values, at::IntArrayRef which, c10::SymIntArrayRef numbers,
                                  const Node& node, at::IntArrayRef edited);
/// Stands for `recorded` where gradients are recorded and no value needs one. A result that needs one, because a
/// routine holds a tensor that does, is an error: the compiled graph has no place for its gradient.
constexpr std::array<int64_t, 1> kNoneNeeded{-1};
/// Returns the results, and last a tensor that stands for the recorded inputs and results.
std::vector<at::Tensor> call_run(at::TensorList values, c10::SymIntArrayRef numbers, const Node& node,
                                 at::IntArrayRef recorded, c10::string_view original, at::IntArrayRef autocast);
/// Returns the gradients of the recorded values, which are like `likes`.
std::vector<at::Tensor> call_replay(at::TensorList gradients, at::IntArrayRef which, const at::Tensor& recorded,
                                    at::TensorList likes, at::IntArrayRef wanted, const Node& node);

}  // namespace amanda::pytorch
