#include "python/path.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

// A Step of amanda/drivers/torch/call_path.py.
class Step {
 public:
  explicit Step(py::handle step) : fields_(step.ptr()) {
    if (!PyTuple_Check(fields_) || PyTuple_GET_SIZE(fields_) != 4) throw py::type_error("no Step");
  }
  py::handle spot() const { return PyTuple_GET_ITEM(fields_, 0); }
  py::handle module() const { return PyTuple_GET_ITEM(fields_, 1); }  // or None
  py::handle mark() const { return PyTuple_GET_ITEM(fields_, 2); }    // or None
  bool enters() const { return PyTuple_GET_ITEM(fields_, 3) == Py_True; }

 private:
  PyObject* fields_;
};

struct SpotAttributes {
  PyObject* is_checkpoint = PyUnicode_InternFromString("is_checkpoint");
  PyObject* is_machinery = PyUnicode_InternFromString("is_machinery");
  PyObject* source = PyUnicode_InternFromString("source");
  PyObject* text = PyUnicode_InternFromString("text");
};

const SpotAttributes& attributes() {
  static const auto& names = *new SpotAttributes;
  return names;
}

py::object get(py::handle spot, PyObject* attribute) {
  auto value = py::reinterpret_steal<py::object>(PyObject_GetAttr(spot.ptr(), attribute));
  if (!value) throw py::error_already_set();
  return value;
}

py::object text_of(py::handle spot) {
  py::object text = get(spot, attributes().text);
  return text.is_none() ? spot.attr("as_text")() : text;
}

// A models.Name.
py::handle name_of(py::handle module, const py::dict& names) {
  const auto address = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(module.ptr()));
  PyObject* name = PyDict_GetItemWithError(names.ptr(), address.ptr());
  if (!name) throw py::key_error("a module has no name");
  return name;
}

py::list first(const py::list& places, py::size_t count) {
  return py::reinterpret_steal<py::list>(PyList_GetSlice(places.ptr(), 0, static_cast<py::ssize_t>(count)));
}

}  // namespace

py::list modules_of(const py::list& steps) {
  py::list modules;
  for (py::handle each : steps) {
    if (const Step step(each); !step.module().is_none()) modules.append(step.module());
  }
  return modules;
}

py::tuple path_of(const py::list& steps, const py::dict& names) {
  py::list places, marked;
  py::object source = py::str();
  py::size_t root = 0, entered = 0, modules = 0, inside = 0;
  bool is_marked = false, is_over = false;
  for (py::handle each : steps) {
    const Step step(each);
    if (!PyUnicode_GET_LENGTH(source.ptr())) source = get(step.spot(), attributes().source);
    const bool runs = !step.module().is_none();
    modules += runs;
    if (is_over) continue;
    const py::size_t outside = places.size();
    if (runs) {
      const py::handle name = name_of(step.module(), names);
      places.append(py::handle(PyTuple_GET_ITEM(name.ptr(), 3)));
      if (PyTuple_GET_ITEM(name.ptr(), 2) == Py_True) root = places.size();
    } else if (get(step.spot(), attributes().is_checkpoint).is(py::handle(Py_True))) {
      root = places.size();
      inside = modules;
      is_over = true;
      continue;
    } else if (!get(step.spot(), attributes().is_machinery).is(py::handle(Py_True))) {
      places.append(text_of(step.spot()));
    }
    if (!is_marked && !step.mark().is_none()) {
      is_marked = true;
      const py::handle place = PyTuple_GET_ITEM(step.mark().ptr(), 0);
      const bool is_named = PyTuple_GET_SIZE(place.ptr()) > 0;
      marked = first(places, is_named ? outside : places.size());
      if (is_named) marked.append(py::repr(place));
    }
    if (!entered && step.enters()) entered = places.size();
  }
  const bool in_model = root > 0 && (!is_over || inside < modules);
  const py::list path = root              ? first(places, root)
                        : !marked.empty() ? marked
                        : entered         ? first(places, entered)
                                          : places;
  return py::make_tuple(py::tuple(path), source, in_model);
}

}  // namespace amanda::python
