// What the profiler in tools/cupti_profiler asks of PyTorch.
#pragma once

#include "cupti_profiler/framework_probe.h"

namespace amanda::python {

const tools::FrameworkProbe& torch_probe();

}  // namespace amanda::python
