// Whether the program calls any operator: told by the first call, at no cost for those after it.
#pragma once

#include <cstdint>

namespace amanda::pytorch {

/// See Backend::await_call.
void await_call(uint64_t entry);
bool end_await_call(uint64_t entry);
/// False: until it is said to be true again, nothing is awaited on this thread. Instrumentation is off.
void await_calls_here(bool on);

}  // namespace amanda::pytorch
