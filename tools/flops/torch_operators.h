// How many operations an operator of PyTorch needs, and which operators multiply without a formula.
//
// Here are those whose operations follow from the sizes of a few operands and of the first result. Products,
// convolutions and fused attention as FlopCounterMode counts them are in flops.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "amanda/value.h"

namespace amanda::tools {

/// What a formula reads of one run.
struct SizedRun {
  std::vector<ValueInfo> inputs{};  ///< those that the operator names
  ValueInfo result{};               ///< the first one
};

/// What Flops does with an operator.
struct TorchOperator {
  /// Empty: the formula does not cover these operands. Null: there is none; the operator is listed as not counted.
  std::optional<int64_t> (*flops)(const SizedRun& run) = nullptr;
  std::vector<int64_t> inputs{};  ///< the positions of what the formula reads
  /// The operator is linear in the first two of `inputs`: a gradient of one of them takes as many operations again.
  bool is_bilinear = false;
};

/// Null: the operator is not in the table.
const TorchOperator* find_torch_operator(const std::string& name);
/// The names of the table, with their namespaces.
const std::vector<std::string>& torch_operators();
/// Those that run operators with a formula, but whose own backward operators multiply without one.
const std::vector<std::string>& operators_with_uncounted_gradients();
/// Is it a namespace of PyTorch itself? What other libraries' operators do is not known.
bool is_torch_namespace(const std::string& ns);
/// The autograd node of an operator, without the number at its end: "_grouped_mm" has a "GroupedMmBackward".
std::string node_of(const std::string& op);

}  // namespace amanda::tools
