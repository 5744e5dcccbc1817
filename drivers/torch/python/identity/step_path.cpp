#include "python/identity/step_path.h"

#include <algorithm>
#include <string>

#include "python/identity/spot.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

// A Step of amanda/drivers/torch/identity/call_path.py.
class Step {
 public:
  explicit Step(py::handle step) : fields_(step.ptr()) {
    if (!PyTuple_Check(fields_) || PyTuple_GET_SIZE(fields_) != 4) throw py::type_error("no Step");
  }
  Spot& spot() const { return py::cast<Spot&>(PyTuple_GET_ITEM(fields_, 0)); }
  py::handle module() const { return PyTuple_GET_ITEM(fields_, 1); }  // or None
  py::handle mark() const { return PyTuple_GET_ITEM(fields_, 2); }    // or None
  bool enters() const { return PyTuple_GET_ITEM(fields_, 3) == Py_True; }

 private:
  PyObject* fields_;
};

}  // namespace

std::vector<PyObject*> modules_in(const py::list& steps) {
  std::vector<PyObject*> modules;
  for (py::handle each : steps) {
    if (const Step step(each); !step.module().is_none()) modules.push_back(step.module().ptr());
  }
  return modules;
}

py::list modules_of(const py::list& steps) {
  py::list modules;
  for (PyObject* module : modules_in(steps)) modules.append(py::handle(module));
  return modules;
}

bool any_lends(const py::list& steps) {
  return std::any_of(steps.begin(), steps.end(), [](py::handle each) { return Step(each).spot().lends(); });
}

Path path_of(const py::list& steps, const ModuleNames& names) {
  auto name = names.begin();
  Path path;
  for (py::handle each : steps) {
    const Step step(each);
    PathStep part = step.spot().part();
    if (!step.module().is_none()) part.run(*name++);
    part.enters = step.enters();
    if (!step.mark().is_none()) part.mark = PyTuple_GET_ITEM(step.mark().ptr(), 0);
    if (!part.runs && part.has_text()) {
      step.spot().make_text();
      part.text = step.spot().part().text;
    }
    path.add(part);
  }
  return path;
}

py::tuple path_of(const py::list& steps) {
  const ModuleNames names = names_given(modules_in(steps));
  const Path path = path_of(steps, names);
  std::string text;
  path.append_to(text);
  return py::make_tuple(text, std::string(path.source()),
                        py::make_tuple(std::string(path.traced().name), path.traced().running), path.in_model());
}

}  // namespace amanda::python
