#include "python/identity/step_path.h"

#include <string>
#include <vector>

#include "python/identity/model_names.h"
#include "python/identity/path.h"
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

py::list modules_of(const py::list& steps) {
  py::list modules;
  for (py::handle each : steps) {
    if (const Step step(each); !step.module().is_none()) modules.append(step.module());
  }
  return modules;
}

py::tuple path_of(const py::list& steps) {
  std::vector<PyObject*> modules;
  for (py::handle each : steps) {
    if (const Step step(each); !step.module().is_none()) modules.push_back(step.module().ptr());
  }
  const ModuleNames names = names_given(modules);
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
  std::string text;
  path.append_to(text);
  return py::make_tuple(text, std::string(path.source()), path.in_model());
}

}  // namespace amanda::python
