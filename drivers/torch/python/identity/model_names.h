// The models that have run, and the names of their modules. All with the interpreter lock.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "python/identity/module_names.h"

namespace amanda::python {

// NOTE: [names of modules] A running module has the name that it has in the outermost running module that holds it. If
// none holds it, it is called directly: it has its name in itself, if it was the outermost one before any other model
// held it; otherwise its name at home, that is in the first model that held it. The modules of a model are listed once
// in an epoch. A change of them starts a new epoch: see amanda/drivers/torch/identity/models.py. A running module that
// a listed model does not hold makes it listed again, once in an epoch: it may have been put there behind the back of
// nn.Module.

/// Watches all modules of a model and names them in it. A module that was named in it before, and is not in it any
/// more, loses that name. A module that has another name now starts a new epoch. The outermost module is the last to
/// have a name.
///
/// Arguments: parts: as named_parts() returned them. names: at home, by address. is_plain: it is a single module
/// without state. Returns the addresses of the modules that have no name any more.
pybind11::list name_parts(const pybind11::list& parts, const pybind11::str& model, const pybind11::bytes& with_state,
                          const pybind11::dict& names, bool is_plain);

/// The outermost module of a model that is to be named before these modules have names. None if all have names.
/// `running`: innermost first.
pybind11::object next_to_name(const pybind11::list& running);

/// The name of a module in the outermost of the running modules that holds it. None if none does. The running modules
/// have names.
pybind11::object name_among(const pybind11::list& running, pybind11::handle module);

/// The name that a module has where it is called directly. None if it has none.
pybind11::object home_name(pybind11::handle module);

/// The names of running modules, innermost first.
using ModuleNames = std::vector<ModuleName>;
/// The names of the running modules. Empty if one is to be named first.
ModuleNames names_now(const std::vector<PyObject*>& running);
/// The names as they were when next_to_name() returned None. Throws if a module has no name.
ModuleNames names_given(const std::vector<PyObject*>& running);

/// The object at this address has died.
void forget_model(uintptr_t address);

}  // namespace amanda::python
