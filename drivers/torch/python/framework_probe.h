// The functions that profilers need from PyTorch.
#pragma once

#include "amanda/driver/probe.h"

namespace amanda::python {

const FrameworkProbe& torch_probe();

}  // namespace amanda::python
