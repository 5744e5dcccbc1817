// The running Python code, as a hash and as text.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace amanda::python {

/// Fills in the driver's hooks, after install_rules(). `name_parameter` is
/// amanda.drivers.torch.identity.parameter_names.name_of. `recomputing` and `engine` hold the code objects that
/// recompute checkpointed regions, and that run the autograd engine. `set_compiler` sets the compiler of this thread's
/// frames, and returns the previous one. With the interpreter lock.
void install_call_path(PyObject* name_parameter, PyObject* recomputing, PyObject* engine, PyObject* set_compiler);

/// Sets which `with amanda.root(name)` block is the innermost in the frame object at this address. 0 if there is none.
/// It is part of the raw path. With the interpreter lock.
void set_block(uintptr_t frame, uint64_t tag);

/// True if the direct walk over the interpreter's frames is in use. If not, the slower public API is.
bool walks_frames_directly();
void walk_frames_directly(bool on);  // for tests: the ids are the same

/// The modules that this thread's frames of nn.Module's __call__ run, borrowed, innermost first. With the interpreter
/// lock.
std::vector<PyObject*> running_modules();

/// The number of places that were named, rather than found. With the interpreter lock.
size_t count_named_places();
size_t count_frames();  // of this thread's Python code

}  // namespace amanda::python
