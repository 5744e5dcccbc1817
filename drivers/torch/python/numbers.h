// Which tensors count as parameters, and the numbers by which the driver tells them apart.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <vector>

namespace amanda::python {

/// For python_hooks.tag: see there. `parameter_class` is nn.Parameter.
void install_numbers(PyObject* parameter_class);

/// The tensor's number, 0 if it has none.
uint64_t number_of(const at::Tensor& tensor);
/// Gives a tensor the next number, in the place of the one it has; `counts`: as a parameter whatever its type and
/// `requires_grad` say. The number is gone when the tensor dies.
uint64_t give_number(const at::Tensor& tensor, bool counts);
/// Takes a number from its tensor, if that is alive.
void take_number(uint64_t number);
/// torch.utils.swap_tensors has exchanged what two Python objects stand for: their numbers stay with the objects.
void exchange_numbers(const at::Tensor& a, const at::Tensor& b);
/// Numbers of tensors that died since the last call.
std::vector<uint64_t> dead_numbers();

}  // namespace amanda::python
