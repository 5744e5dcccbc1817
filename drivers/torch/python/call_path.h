// The running Python code, as a hash and as text.
#pragma once

#include <Python.h>

namespace amanda::python {

/// Fills in the driver's hooks. `describe` is amanda.drivers.torch.call_path.resolve; `recomputing` and `engine` hold
/// the code objects that recompute checkpointed regions, and that run the autograd engine; `set_compiler` sets the
/// compiler of this thread's frames, and returns the previous one. With the interpreter lock.
void install_call_path(PyObject* describe, PyObject* recomputing, PyObject* engine, PyObject* run_module,
                       PyObject* set_compiler);

/// Is the direct walk over the interpreter's frames in use? If not, the slower public API is.
bool walks_frames_directly();
void walk_frames_directly(bool on);  // for tests: the ids are the same

size_t count_frames();  // of this thread's Python code

}  // namespace amanda::python
