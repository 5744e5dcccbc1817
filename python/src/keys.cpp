// Keys of a context that C++ and Python both see.
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
    int overflow = 0;
    return PyLong_CheckExact(object.ptr()) && (PyLong_AsLongLongAndOverflow(object.ptr(), &overflow), overflow == 0);
  }
  if constexpr (std::is_same_v<T, double>) return PyFloat_CheckExact(object.ptr());
  if constexpr (std::is_same_v<T, std::string>) return PyUnicode_CheckExact(object.ptr());
  return false;
}

template <class T>
std::any as_vector(const py::list& list) {
  for (py::handle item : list) {
    if (!is<T>(item)) return {};
  }
  return list.cast<std::vector<T>>();
}

}  // namespace

bool is_shared(const std::any& value) {
  return visit_shared(value, [](const auto&) {});
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
  py::object object = py::none();
  visit_shared(value, [&](const auto& typed) { object = py::cast(typed); });
  return object;
}

std::any from_python(py::handle object) {
  if (is<bool>(object)) return object.cast<bool>();
  if (is<int64_t>(object)) return object.cast<int64_t>();
  if (is<double>(object)) return object.cast<double>();
  if (is<std::string>(object)) return object.cast<std::string>();
  if (!PyList_CheckExact(object.ptr()) || PyList_GET_SIZE(object.ptr()) == 0) return {};
  const auto list = py::reinterpret_borrow<py::list>(object);
  if (is<bool>(list[0])) return as_vector<bool>(list);
  if (is<int64_t>(list[0])) return as_vector<int64_t>(list);
  if (is<double>(list[0])) return as_vector<double>(list);
  if (is<std::string>(list[0])) return as_vector<std::string>(list);
  return {};
}

}  // namespace amanda::python
