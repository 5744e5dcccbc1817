#include "python/steps.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace amanda::python {
namespace {

namespace py = pybind11;

struct Known {
  py::object module;  // the name of the code's Python module; null: it has none
  py::object step;
};

// By code and instruction; a function may belong to several modules. Under the interpreter lock.
using OfCode = std::unordered_map<int, std::vector<Known>>;
std::unordered_map<uintptr_t, OfCode>& known = *new std::unordered_map<uintptr_t, OfCode>;

PyObject* module_of(py::handle globals) {
  static PyObject* const key = PyUnicode_InternFromString("__name__");
  PyObject* name = PyDict_GetItemWithError(globals.ptr(), key);
  return name && PyUnicode_CheckExact(name) ? name : nullptr;
}

bool same(PyObject* a, PyObject* b) { return a == b || (a && b && PyUnicode_Compare(a, b) == 0); }

PyObject* find(uintptr_t code, int offset, PyObject* module) {
  const auto of_code = known.find(code);
  if (of_code == known.end()) return nullptr;
  const auto found = of_code->second.find(offset);
  if (found == of_code->second.end()) return nullptr;
  for (const Known& one : found->second) {
    if (same(one.module.ptr(), module)) return one.step.ptr();
  }
  return nullptr;
}

}  // namespace

py::object steps_from(py::object frame, const py::object& make, py::handle run_module,
                      const std::vector<uintptr_t>& addresses) {
  py::list steps, special;
  if (frame.is_none()) frame = py::object();
  while (frame) {
    auto* here = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(here)));
    const auto globals = py::reinterpret_steal<py::object>(PyFrame_GetGlobals(here));
    const auto address = reinterpret_cast<uintptr_t>(code.ptr());
    const int offset = PyFrame_GetLasti(here);
    PyObject* module = module_of(globals);
    auto step = py::reinterpret_borrow<py::object>(find(address, offset, module));
    if (!step) {
      const auto name = py::reinterpret_borrow<py::object>(module);
      step = make(frame);
      if (step.is_none()) return step;
      known[address][offset].push_back({name, step});
    }
    const bool at_address =
        std::find(addresses.begin(), addresses.end(), reinterpret_cast<uintptr_t>(here)) != addresses.end();
    if (at_address || code.is(run_module)) special.append(py::make_tuple(steps.size(), frame));
    steps.append(std::move(step));
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
  }
  return py::make_tuple(std::move(steps), std::move(special));
}

void forget_steps(uintptr_t code) {
  const auto found = known.find(code);
  if (found == known.end()) return;
  const OfCode dropped = std::move(found->second);  // destroyed last: that may run Python code
  known.erase(found);
}

}  // namespace amanda::python
