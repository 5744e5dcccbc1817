// Kernels with C++ types instead of boxed ones, for the operators that dominate models.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>

#include "thread/keys.h"

namespace amanda::pytorch {

/// Calls `install(operator, its kernel on the key of `role`)` for each typed kernel.
void each_typed_kernel(KeyRole role,
                       const std::function<void(const c10::OperatorHandle&, const c10::KernelFunction&)>& install);
/// The number of typed kernels.
size_t count_typed_kernels();

}  // namespace amanda::pytorch
