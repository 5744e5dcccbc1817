// Errors of tools, as the callers of an operator expect them.
#pragma once

#include <cxxabi.h>

#include "amanda/error.h"
#include "base/python_hooks.h"
#include "forward/forward_call.h"

namespace amanda::pytorch {

/// Calls `run`, which runs the call under tools. Throws its errors in the form that PyTorch's callers handle.
template <class Run>
void rethrow_for_callers(ForwardCall& call, const Run& run) {
  try {
    run();
  } catch (const Error&) {
    call.abandon();
    if (python_hooks.rethrow) python_hooks.rethrow();
    throw;
  } catch (const abi::__forced_unwind&) {  // the thread is ending
    throw;
  } catch (...) {
    call.abandon();
    throw;
  }
}

}  // namespace amanda::pytorch
