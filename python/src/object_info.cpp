#include "object_info.h"

#include <fmt/format.h>

#include <set>
#include <string>

#include "module.h"

namespace amanda::python {
namespace {

// A dtype's name lasts as long as the process; read and written with the interpreter lock.
std::string_view lasting(const std::string& name) {
  static auto* names = new std::set<std::string>;
  return *names->insert(name).first;
}

ValueInfo number(PyObject* object) {
  ValueInfo info{.kind = ValueKind::kNumber};
  if (PyBool_Check(object)) {
    info.dtype = "bool";
    info.integers = {object == Py_True};
  } else if (PyLong_Check(object)) {
    info.dtype = "int64";
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (!overflow) info.integers = {value};
  } else {
    info.dtype = PyFloat_Check(object) ? "float64" : "complex128";
  }
  return info;
}

bool is_number(PyObject* object) { return PyLong_Check(object) || PyFloat_Check(object) || PyComplex_Check(object); }

ValueInfo tensor(const py::dict& known) {
  ValueInfo info{.kind = ValueKind::kTensor, .bytes = kUnknown};
  for (auto [name, value] : known) {
    const std::string field = text_of(name);
    if (field == "dtype") {
      info.dtype = lasting(text_of(value));
    } else if (field == "sizes") {
      if (value.is_none()) continue;
      info.sizes.emplace();
      for (py::handle size : value) info.sizes->push_back(size.is_none() ? kUnknown : size.cast<int64_t>());
    } else if (field == "device") {
      info.device = text_of(value);
    } else if (field == "bytes") {
      if (!value.is_none()) info.bytes = value.cast<int64_t>();
    } else if (field == "requires_grad") {
      info.requires_grad = value.cast<bool>();
    } else {
      throw py::type_error(
          fmt::format("[graph] describe() gave '{}'; it gives dtype, sizes, device, bytes and requires_grad", field));
    }
  }
  return info;
}

ValueInfo list_of(py::handle list, py::handle describe) {
  ValueInfo info{.kind = ValueKind::kNumbers};
  for (py::handle element : list) {
    info.elements.push_back(info_of(element, describe));
    const ValueInfo& one = info.elements.back();
    if (one.kind != ValueKind::kNumber) info.kind = ValueKind::kTensors;
    if (one.kind != ValueKind::kNumber && one.kind != ValueKind::kTensor && one.kind != ValueKind::kNone) {
      return {.kind = ValueKind::kOther};
    }
    info.dtype = info.elements.size() == 1 || info.dtype == one.dtype ? one.dtype : "";
    info.bytes = info.bytes == kUnknown || one.bytes == kUnknown ? kUnknown : info.bytes + one.bytes;
    info.requires_grad |= one.requires_grad;
    if (!one.integers.empty()) info.integers.push_back(one.integers[0]);
  }
  if (info.kind == ValueKind::kTensors || info.integers.size() != info.elements.size()) info.integers = {};
  if (info.kind == ValueKind::kNumbers) info.elements.clear();
  return info;
}

}  // namespace

ValueInfo info_of(py::handle object, py::handle describe) {
  if (!object || object.is_none()) return {};
  if (is_number(object.ptr())) return number(object.ptr());
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) return list_of(object, describe);
  if (!describe || describe.is_none()) return {.kind = ValueKind::kOther};
  const py::object known = describe(object);
  if (known.is_none()) return {.kind = ValueKind::kOther};
  if (py::isinstance<py::dict>(known)) return tensor(known);
  throw py::type_error("[graph] describe() takes an operand and gives a dict or None, got " + text_of(py::repr(known)));
}

}  // namespace amanda::python
