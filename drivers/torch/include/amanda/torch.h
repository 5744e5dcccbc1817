// Tensors for C++ tools: the operand behind a Value of the PyTorch driver. Include after, or instead of,
// <torch/torch.h>.
/// @namespace amanda::pytorch
/// The PyTorch driver.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "amanda/amanda.h"

namespace amanda::pytorch {

/// The operand itself: a tensor, a list, a number, None ... Borrowed: valid as long as the Value. Throws `Error` for a
/// null Value (no longer alive), and for a symbol: an operand at the analysis of a function that is being compiled.
const c10::IValue& ivalue(Value value);

/// The operand as a tensor, which shares its data; undefined if it is None. Throws `Error` if it is something else.
at::Tensor tensor(Value value);

/// True if the operand is a defined tensor.
bool is_tensor(Value value);

/// Replaces the i-th selected operand by a tensor, or by any other value of the right type. Throws as Values::set().
void set(Values& values, size_t i, const c10::IValue& value);

/// Sets a replacement's i-th result. Throws as Values::set_result().
void set_result(Values& values, size_t i, const c10::IValue& value);

/// The operators by which linear layers multiply by their weight, as `amanda.ops.linear_like` in Python: Python's
/// `nn.Linear` calls "linear", `torch::nn::Linear` calls "addmm" or "matmul". Some also multiply activations.
inline OpFilter linear_like() {
  return {"linear",
          "matmul",
          "mm",
          "bmm",
          "mv",
          "addmm",
          "addmv",
          "baddbmm",
          "addbmm",
          "_grouped_mm",
          "_transformer_encoder_layer_fwd",
          "_native_multi_head_attention"};
}

/// The driver. Linking to it attaches it, for the whole process.
Backend& backend();

}  // namespace amanda::pytorch
