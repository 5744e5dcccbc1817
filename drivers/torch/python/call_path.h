// The Python code that is running, as a hash and in words.
#pragma once

#include <Python.h>

namespace amanda::python {

/// Fills in the driver's hooks. `describe` is amanda.drivers.torch.call_path.resolve; `recomputing` and `engine` hold
/// the code objects that recompute checkpointed regions, and that run the autograd engine; `set_compiler` sets what
/// compiles this thread's frames, and returns what did. With the interpreter lock.
void install_call_path(PyObject* describe, PyObject* recomputing, PyObject* engine, PyObject* run_module,
                       PyObject* set_compiler);

/// Is the walk over this interpreter's own frames in use (else the public API, slower)?
bool walks_frames_directly();
void walk_frames_directly(bool on);  // for tests: the ids are the same

size_t count_frames();  // of this thread's Python code

}  // namespace amanda::python
