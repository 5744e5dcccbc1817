// The tensors of torch::nn models that a C++ program has named, see ModuleNames.
#pragma once

#include <string>

#include "amanda/op.h"
#include "base/op_types.h"
#include "base/stack_value.h"

namespace amanda::pytorch {

/// True if the program has named a model.
bool has_named_tensors();

/// The number of a tensor that has a name, which is never reused. 0 if it has none.
uint64_t named_tensor_number(const at::Tensor& tensor);

/// "encoder.0.weight"; for a view, the name of the tensor that it is a view of. "" if it has none.
std::string named_tensor(const at::Tensor& tensor);

/// The path of the innermost module that holds all named tensors which the operator reads and does not write. "" if it
/// reads none, or some of several models.
std::string path_of_named(const OpRecord& record, c10::ArrayRef<OperandTensor> arguments);

/// Keeps the path of the operator with this id, for where its operands are gone.
void remember_path(OpId id, const std::string& path);
/// "" if none is kept.
std::string remembered_path(OpId id);

}  // namespace amanda::pytorch
