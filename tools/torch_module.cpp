// amanda._torch_tools: the C++ halves of tools that work on PyTorch's tensors.
#include "torch_bindings.h"

PYBIND11_MODULE(_torch_tools, m) {
  using namespace amanda::tools::pytorch;
  m.doc() = "What tools do with PyTorch's tensors. Use it through `amanda.tools`.";
  bind_tensors(m);
  bind_finite(m);
  bind_unwritten(m);  // before those that are given one
  bind_statistics(m);
  bind_gradients(m);
  bind_inplace(m);
  bind_memory(m);
  bind_storages(m);
  bind_fake_quantization(m);
  bind_collectives(m);
}
