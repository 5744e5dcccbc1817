// The modules of a model, and the data by which they are registered. Classes belong to the program: no method that a
// class may override is called, and objects are compared by identity.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <string>
#include <utility>

namespace amanda::python {

/// The members that a module itself holds in `kind`, that is "_parameters", "_buffers" or "_modules", without those
/// that are None: a list of (name, value).
pybind11::list held(const pybind11::object& module, const pybind11::str& kind);

/// (name, module) of a module and of all modules in it, each once, in the order of nn.Module.named_modules().
/// `wrapper`: the class of torch.compile's wrappers, which count as the module inside. None if there are none.
pybind11::list named_parts(pybind11::handle module, const pybind11::object& wrapper);

/// The functions below take the result of named_parts().

/// [(name, shape)] of all parameters, as Python shows it.
std::string parameters_text(const pybind11::list& parts);
/// One byte for each part: 1 if it, or a module in it, holds parameters or buffers.
pybind11::bytes with_state(const pybind11::list& parts, const pybind11::object& wrapper);
/// (name, module) of the part at `i`, borrowed.
std::pair<pybind11::handle, pybind11::handle> part_of(const pybind11::list& parts, size_t i);
/// True if a module itself holds parameters or buffers.
bool holds_state(pybind11::handle module);
/// A Name of amanda/drivers/torch/identity/models.py.
pybind11::object new_name(const pybind11::str& model, const pybind11::object& path, bool has_state,
                          const std::string& text);

/// Has the buffers of named modules count as parameters. The outermost is the last.
void register_buffers(const pybind11::list& parts);

}  // namespace amanda::python
