// Notes whether the program calls any operator: at the first call, without cost for later calls.
#pragma once

#include <cstdint>

#include "amanda/driver/backend.h"

namespace amanda::pytorch {

/// See Backend::await_call.
void await_call(uint64_t entry, bool elsewhere);
AwaitedCall end_await_call(uint64_t entry);
/// If `on` is false, nothing is awaited on this thread until the next call with true. Instrumentation is then off.
void await_calls_here(bool on);

}  // namespace amanda::pytorch
