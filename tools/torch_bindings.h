// The contents of amanda._torch_tools: a function for each tool, in its folder. The module is built against torch's own
// pybind11.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace amanda::tools::pytorch {

void bind_collectives(pybind11::module_& m);
void bind_finite(pybind11::module_& m);
void bind_gradients(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_fake_quantization(pybind11::module_& m);
void bind_inplace(pybind11::module_& m);
void bind_statistics(pybind11::module_& m);
void bind_storages(pybind11::module_& m);
void bind_tensors(pybind11::module_& m);
void bind_unwritten(pybind11::module_& m);

}  // namespace amanda::tools::pytorch
