// The entry to the autograd engine for backward passes that C++ code starts.
#pragma once

namespace amanda::pytorch {

// NOTE: [backward passes] While the engine runs, operators are not caught: those that nodes call are not instrumented,
// and there are many. Passes that Python starts go through amanda.drivers.torch.backward_pass, all others through the
// engine that Engine::get_default_engine() returns. A pass that begins inside a node may go on in a thread of the
// engine, since only 60 levels run on one, so the thread's scopes are published first. All other passes on the CPU run
// on the thread that began them, and no node copies published state.

/// Has passes that C++ code starts go through us; the engine that was there until now runs them.
void install_engine_entry();

}  // namespace amanda::pytorch
