// The boxed kernels behind the two keys: where every operator call comes in.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace amanda::pytorch {

void catch_all(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
void catch_filtered(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace amanda::pytorch
