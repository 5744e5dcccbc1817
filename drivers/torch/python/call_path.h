// The Python code that is running, as a hash and in words.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

namespace amanda::python {

/// Fills in the driver's hooks. `resolve_place` is amanda.drivers.torch.call_path.resolve; `name_parameter` is
/// amanda.drivers.torch.parameter_names.name_of; `recomputing` and `engine` hold
/// the code objects that recompute checkpointed regions, and that run the autograd engine; `set_compiler` sets what
/// compiles this thread's frames, and returns what did. With the interpreter lock.
void install_call_path(PyObject* resolve_place, PyObject* name_parameter, PyObject* recomputing, PyObject* engine,
                       PyObject* run_module, PyObject* set_compiler);

/// The innermost `with amanda.root(name)` that the frame object at this address is in; 0: none. The same code in
/// another block, or in none, is then another raw path. With the interpreter lock.
void set_block(uintptr_t frame, uint64_t tag);

/// Is the walk over this interpreter's own frames in use (else the public API, slower)?
bool walks_frames_directly();
void walk_frames_directly(bool on);  // for tests: the ids are the same

size_t count_frames();  // of this thread's Python code

}  // namespace amanda::python
