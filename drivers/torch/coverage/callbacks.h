// Callbacks of RecordFunction. PyTorch changes them with a lock held, which a forked child would find held for ever.
#pragma once

#include <ATen/record_function.h>

namespace amanda::pytorch {

/// The callbacks of this thread. A thread's first look copies those of all threads, with that lock held.
const at::RecordFunctionCallbacks& callbacks_here();
/// Adds a callback on this thread. A fork waits until it is added, as with all functions here.
at::CallbackHandle add_callback_here(const at::RecordFunctionCallback& callback);
/// Adds a callback on all threads.
at::CallbackHandle add_callback_everywhere(const at::RecordFunctionCallback& callback);
/// Removes a callback of this thread.
void remove_callback_here(at::CallbackHandle callback);
/// Removes a callback of all threads.
void remove_callback_everywhere(at::CallbackHandle callback);

}  // namespace amanda::pytorch
