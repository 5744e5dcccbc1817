// Keys of a context that C++ and Python share.
#include <pybind11/stl.h>

#include <tuple>
#include <vector>

#include "op_context.h"

namespace amanda::python {
namespace {

using Shared = std::tuple<bool, int64_t, double, std::string, std::vector<bool>, std::vector<int64_t>,
                          std::vector<double>, std::vector<std::string>>;

/// Calls `fn` with the value, typed, if it is of a shared type.
template <class Fn>
bool visit_shared(const std::any& value, const Fn& fn) {
  return std::apply(
      [&](auto... types) {
        auto visit = [&](auto type) {
          const auto* typed = std::any_cast<decltype(type)>(&value);
          if (typed) fn(*typed);
          return typed != nullptr;
        };
        return (visit(types) || ...);
      },
      Shared());
}

template <class T>
bool is(py::handle object) {
  if constexpr (std::is_same_v<T, bool>) return PyBool_Check(object.ptr());
  if constexpr (std::is_same_v<T, int64_t>) {
    if (!PyLong_CheckExact(object.ptr())) return false;
    int overflow = 0;
    PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    return overflow == 0;
  }
  if constexpr (std::is_same_v<T, double>) return PyFloat_CheckExact(object.ptr());
  if constexpr (std::is_same_v<T, std::string>) return PyUnicode_CheckExact(object.ptr());
  return false;
}

template <class T>
std::any as_vector(const py::list& list) {
  std::vector<T> values;
  for (py::handle item : list) {
    if (!is<T>(item)) return {};
    if constexpr (std::is_same_v<T, std::string>) {
      std::optional<std::string> text = encoded(item);
      if (!text) return {};
      values.push_back(std::move(*text));
    } else {
      values.push_back(item.cast<T>());
    }
  }
  return values;
}

template <class T>
py::object as_python(const T& value) {
  return py::cast(value);
}
py::object as_python(const std::string& text) { return decoded(text); }
py::object as_python(const std::vector<std::string>& texts) {
  py::list list;
  for (const std::string& text : texts) {
    const py::object item = decoded(text);
    if (!item) return {};
    list.append(item);
  }
  return list;
}

}  // namespace

std::optional<std::string> encoded(py::handle text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes) return std::string(bytes, static_cast<size_t>(size));
  if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) throw py::error_already_set();
  PyErr_Clear();
  return std::nullopt;
}

py::object decoded(const std::string& text) {
  PyObject* object = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
  if (object) return py::reinterpret_steal<py::object>(object);
  if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) throw py::error_already_set();
  PyErr_Clear();
  return {};
}

bool equal(const std::any& a, const std::any& b) {
  bool same = false;
  visit_shared(a, [&](const auto& typed) {
    const auto* other = std::any_cast<std::decay_t<decltype(typed)>>(&b);
    same = other && *other == typed;
  });
  return same;
}

py::object to_python(const std::any& value) {
  py::object object;
  visit_shared(value, [&](const auto& typed) { object = as_python(typed); });
  return object;
}

std::any from_python(py::handle object) {
  if (is<bool>(object)) return object.cast<bool>();
  if (is<int64_t>(object)) return object.cast<int64_t>();
  if (is<double>(object)) return object.cast<double>();
  if (is<std::string>(object)) {
    std::optional<std::string> text = encoded(object);
    return text ? std::any(std::move(*text)) : std::any();
  }
  if (!PyList_CheckExact(object.ptr()) || PyList_GET_SIZE(object.ptr()) == 0) return {};
  const auto list = py::reinterpret_borrow<py::list>(object);
  if (is<bool>(list[0])) return as_vector<bool>(list);
  if (is<int64_t>(list[0])) return as_vector<int64_t>(list);
  if (is<double>(list[0])) return as_vector<double>(list);
  if (is<std::string>(list[0])) return as_vector<std::string>(list);
  return {};
}

}  // namespace amanda::python
