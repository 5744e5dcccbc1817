// Python strings as C++ ones.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

namespace amanda::python {

/// The text of a Python string, valid as long as the string lives.
inline std::string_view view(pybind11::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (!data) throw pybind11::error_already_set();
  return {data, static_cast<size_t>(size)};
}

/// Escapes characters that are not valid UTF-8, as frames.encodable() does.
inline std::string encodable(pybind11::handle text) {
  Py_ssize_t size = 0;
  if (const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size)) return {data, static_cast<size_t>(size)};
  PyErr_Clear();
  const auto escaped =
      pybind11::reinterpret_steal<pybind11::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!escaped) throw pybind11::error_already_set();
  return PyBytes_AS_STRING(escaped.ptr());
}

}  // namespace amanda::python
