// The number of operations of an operator of PyTorch, and the operators that multiply without a formula.
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

/// The data of one run that a formula reads.
struct SizedRun {
  std::vector<ValueInfo> inputs{};  ///< those that the operator names
  ValueInfo result{};               ///< the first one
};

/// The entry of an operator in the table of Flops.
struct TorchOperator {
  /// The result is empty if the formula does not cover these operands. Null if there is no formula; the operator is
  /// then listed as not counted.
  std::optional<int64_t> (*flops)(const SizedRun& run) = nullptr;
  std::vector<int64_t> inputs{};  ///< the positions that the formula reads
  /// The operator is linear in the first two of `inputs`: a gradient of one of them takes as many operations again.
  bool is_bilinear = false;
};

/// The entry of an operator. Null if the operator is not in the table.
const TorchOperator* find_torch_operator(const std::string& name);
/// The names of the table, with their namespaces.
const std::vector<std::string>& torch_operators();
/// The operators that run operators with a formula, but whose own backward operators multiply without one.
const std::vector<std::string>& operators_with_uncounted_gradients();
/// True if it is a namespace of PyTorch itself. The work of other libraries' operators is not known.
bool is_torch_namespace(const std::string& ns);
/// The autograd node of an operator, without the number at its end: "_grouped_mm" has a "GroupedMmBackward".
std::string node_of(const std::string& op);

}  // namespace amanda::tools
