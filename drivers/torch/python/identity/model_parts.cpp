#include "python/identity/model_parts.h"

#include <torch/csrc/autograd/python_variable.h>

#include <unordered_set>
#include <utility>

#include "python/identity/deaths.h"
#include "python/identity/numbers.h"
#include "python/identity/place_rules.h"
#include "python/identity/text.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

PyObject* interned(const char* text) {
  PyObject* made = PyUnicode_InternFromString(text);
  if (!made) throw py::error_already_set();
  return made;  // never released
}
const py::handle& parameters_kind() {
  static const py::handle kind = interned("_parameters");
  return kind;
}
const py::handle& buffers_kind() {
  static const py::handle kind = interned("_buffers");
  return kind;
}
const py::handle& modules_kind() {
  static const py::handle kind = interned("_modules");
  return kind;
}

py::object checked(PyObject* made) {
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

py::object address_of(py::handle object) { return checked(PyLong_FromVoidPtr(object.ptr())); }

bool contains(const py::dict& dict, py::handle key) {
  const int found = PyDict_Contains(dict.ptr(), key.ptr());
  if (found < 0) throw py::error_already_set();
  return found != 0;
}

// Calls `see(name, value)` for each, until that returns true; returns whether it did. `see` may run code of the
// program, which may change the members meanwhile.
template <class See>
bool any_held(py::handle module, py::handle kind, const See& see) {
  const py::object attributes = checked(PyObject_GenericGetDict(module.ptr(), nullptr));
  PyObject* found = PyDict_GetItemWithError(attributes.ptr(), kind.ptr());
  if (!found && PyErr_Occurred()) throw py::error_already_set();
  if (!found || (PyDict_CheckExact(found) && PyDict_GET_SIZE(found) == 0)) return false;
  const auto items = py::reinterpret_borrow<py::object>(found);
  const int full = PyObject_IsTrue(items.ptr());
  if (full < 0) throw py::error_already_set();
  if (full == 0) return false;
  const py::object pairs = checked(PyMapping_Items(items.ptr()));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs.ptr()); ++i) {
    const py::object pair = checked(PySequence_Tuple(PyList_GET_ITEM(pairs.ptr(), i)));  // usually itself
    if (PyTuple_GET_SIZE(pair.ptr()) != 2) throw py::value_error("no pair of a name and a value");
    const py::handle name = PyTuple_GET_ITEM(pair.ptr(), 0), value = PyTuple_GET_ITEM(pair.ptr(), 1);
    if (!value.is_none() && see(name, value)) return true;
  }
  return false;
}

bool holds_any(py::handle module, py::handle kind) {
  return any_held(module, kind, [](py::handle, py::handle) { return true; });
}

// "path.", or "" for the outermost module.
py::object start_of_names(py::handle path) {
  if (PyUnicode_GetLength(path.ptr()) == 0) return py::reinterpret_borrow<py::object>(path);
  static const py::handle dot = interned(".");
  return checked(PyUnicode_Concat(path.ptr(), dot.ptr()));
}

py::object joined(const py::object& start, py::handle name) {
  const py::str text(name);  // which usually it is
  return checked(PyUnicode_Concat(start.ptr(), text.ptr()));
}

// An instance of a NamedTuple, without a call of Python.
template <class... Fields>
py::object made(const py::object& named_tuple, const Fields&... fields) {
  const py::tuple sequence = py::make_tuple(fields...);
  const py::object arguments = checked(PyTuple_Pack(1, sequence.ptr()));
  return checked(PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(named_tuple.ptr()), arguments.ptr(), nullptr));
}

bool is_a(py::handle object, const py::object& cls) {
  return PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(cls.ptr())) != 0;
}

py::object unwrapped(py::handle module, const py::object& wrapper) {
  auto found = py::reinterpret_borrow<py::object>(module);
  while (!wrapper.is_none() && is_a(found, wrapper)) {
    const py::object attributes = checked(PyObject_GenericGetDict(found.ptr(), nullptr));
    found = attributes[modules_kind()]["_orig_mod"];
  }
  return found;
}

class Walk {
 public:
  explicit Walk(const py::object& wrapper) : wrapper_(wrapper) {}

  void add(py::handle held, py::handle name) {
    const py::object module = unwrapped(held, wrapper_);
    if (!seen_.insert(module.ptr()).second) return;
    const py::object pair = checked(PyTuple_Pack(2, name.ptr(), module.ptr()));
    if (PyList_Append(parts.ptr(), pair.ptr()) < 0) throw py::error_already_set();
    if (Py_EnterRecursiveCall(" while modules are named") != 0) throw py::error_already_set();
    try {
      const py::object start = start_of_names(name);
      any_held(module, modules_kind(), [&](py::handle part_name, py::handle part) {
        if (is_a(part, rules().module_class)) add(part, joined(start, part_name));
        return false;
      });
    } catch (...) {
      Py_LeaveRecursiveCall();
      throw;
    }
    Py_LeaveRecursiveCall();
  }

  py::list parts;

 private:
  const py::object& wrapper_;
  std::unordered_set<PyObject*> seen_;
};

// The text by which Python shows the shape's tuple, or None.
std::string shape_text(py::handle parameter) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(parameter.ptr()));
  const bool plain = type == rules().parameter_class.ptr() || type == THPVariableClass;
  if (plain && THPVariable_Check(parameter.ptr())) {
    const at::Tensor& tensor = THPVariable_Unpack(parameter.ptr());
    if (!tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      std::string text = "(";
      for (const int64_t size : tensor.sizes()) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
      return text + (tensor.dim() == 1 ? ",)" : ")");
    }
  }
  return std::string(view(py::repr(rules().shape_of(parameter))));
}

}  // namespace

std::pair<py::handle, py::handle> part_of(const py::list& parts, size_t i) {
  PyObject* pair = PyList_GET_ITEM(parts.ptr(), static_cast<Py_ssize_t>(i));
  return {PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1)};
}

bool holds_state(py::handle module) {
  return holds_any(module, parameters_kind()) || holds_any(module, buffers_kind());
}

py::object new_name(const py::str& model, const py::object& path, bool has_state, const std::string& text) {
  return made(rules().name_class, model, path, py::bool_(has_state), py::str(text));
}

py::list held(const py::object& module, const py::str& kind) {
  py::list found;
  any_held(module, kind, [&](py::handle name, py::handle value) {
    found.append(py::make_tuple(name, value));
    return false;
  });
  return found;
}

py::list named_parts(py::handle module, const py::object& wrapper) {
  Walk walk(wrapper);
  walk.add(module, py::str());
  return std::move(walk.parts);
}

std::string parameters_text(const py::list& parts) {
  std::unordered_set<PyObject*> seen;
  std::string text = "[";
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [path, module] = part_of(parts, i);
    if (!holds_any(module, parameters_kind())) continue;
    const py::object start = start_of_names(path);
    any_held(module, parameters_kind(), [&](py::handle name, py::handle parameter) {
      if (!seen.insert(parameter.ptr()).second) return false;
      if (seen.size() > 1) text += ", ";
      text += "(";
      text += view(py::repr(joined(start, name)));
      text += ", " + shape_text(parameter) + ")";
      return false;
    });
  }
  return text + "]";
}

py::bytes with_state(const py::list& parts, const py::object& wrapper) {
  std::string flags(parts.size(), '\0');
  std::unordered_set<PyObject*> found;
  for (size_t i = parts.size(); i-- > 0;) {  // those in a module come after it, unless another one holds them, too
    const auto module = part_of(parts, i).second;
    bool inner = false;
    bool has_state = holds_state(module) || any_held(module, modules_kind(), [&](py::handle, py::handle part) {
                       inner = true;
                       return found.contains(part.ptr());
                     });
    if (!has_state && inner) {
      const py::list inside = named_parts(module, wrapper);
      for (size_t j = 0; j < inside.size() && !has_state; ++j) has_state = holds_state(part_of(inside, j).second);
    }
    if (!has_state) continue;
    found.insert(module.ptr());
    flags[i] = 1;
  }
  return flags;
}

namespace {

void register_new(py::handle module, const py::object& address) {
  const PlaceRules& tables = rules();
  const py::object reference = checked(PyWeakref_NewRef(module.ptr(), nullptr));
  const py::dict numbers;
  tables.registered[address] = made(tables.buffers_class, reference, numbers);
  any_held(module, buffers_kind(), [&](py::handle name, py::handle buffer) {
    if (!THPVariable_Check(buffer.ptr())) return false;
    const at::Tensor& tensor = THPVariable_Unpack(buffer.ptr());
    py::int_ number(number_of(tensor));
    if (!contains(tables.homes, number)) number = py::int_(assign_number(tensor, /*counts=*/true));
    numbers[name] = number;
    if (!contains(tables.homes, number)) tables.homes[number] = py::list();
    py::list(tables.homes[number]).append(made(tables.home_class, reference, name));
    return false;
  });
}

}  // namespace

void register_buffers(const py::list& parts) {
  for (size_t i = parts.size(); i-- > 0;) {
    const auto module = part_of(parts, i).second;
    const py::object address = address_of(module);
    if (!contains(rules().names, address)) continue;
    if (contains(rules().registered, address)) {
      rules().settle_buffers(module);
    } else {
      register_new(module, address);
    }
  }
}

}  // namespace amanda::python
