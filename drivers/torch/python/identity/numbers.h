// The tensors that count as parameters, and the numbers by which the driver distinguishes them.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <vector>

namespace amanda::python {

/// Installs python_hooks.tag: see there. `parameter_class` is nn.Parameter.
void install_numbers(PyObject* parameter_class);

/// The tensor's number, 0 if it has none.
uint64_t number_of(const at::Tensor& tensor);
/// Assigns the next number to a tensor, replacing the one it has, and returns it. `counts`: as a parameter, whatever
/// its type and `requires_grad` say. The number is released when the tensor dies.
uint64_t assign_number(const at::Tensor& tensor, bool counts);
/// Removes a number from its tensor, if that is alive.
void clear_number(uint64_t number);
/// torch.utils.swap_tensors exchanged the tensors of two Python objects: the numbers stay with the objects.
void exchange_numbers(const at::Tensor& a, const at::Tensor& b);
/// Numbers of tensors that died since the last call.
std::vector<uint64_t> dead_numbers();
/// True if dead_numbers() would return any, or if tables may still hold those that it returned the last time.
bool has_dead_numbers();

}  // namespace amanda::python
