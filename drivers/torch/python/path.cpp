#include "python/path.h"

#include "python/module_names.h"
#include "python/spot.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

// A Step of amanda/drivers/torch/call_path.py.
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

void Path::add(const PathStep& step) {
  if (source_.empty()) source_ = step.source;
  modules_ += step.runs;
  if (is_over_) return;
  const size_t outside = places_.size();
  if (step.runs) {
    places_.push_back(step.text);
    if (step.has_state) root_ = places_.size();
  } else if (step.is_checkpoint) {
    root_ = places_.size();
    inside_ = modules_;
    is_over_ = true;
    return;
  } else if (!step.is_machinery) {
    places_.push_back(step.text);
  }
  if (!is_marked_ && step.mark) {
    is_marked_ = true;
    const bool is_named = PyTuple_GET_SIZE(step.mark.ptr()) > 0;
    marked_ = is_named ? outside : places_.size();
    if (is_named) mark_ = py::repr(step.mark).cast<std::string>();
  }
  if (!entered_ && step.enters) entered_ = places_.size();
}

void Path::append_to(std::string& text) const {
  const bool at_mark = !has_root() && (marked_ > 0 || !mark_.empty());
  const size_t count = has_root() ? root_ : at_mark ? marked_ : entered_ ? entered_ : places_.size();
  text += '(';
  size_t listed = 0;
  auto list = [&](std::string_view place) {
    if (listed++ > 0) text += ", ";
    text += place;
  };
  for (size_t i = 0; i < count; ++i) list(places_[i]);
  if (at_mark && !mark_.empty()) list(mark_);
  text += listed == 1 ? ",)" : ")";
}

py::list modules_of(const py::list& steps) {
  py::list modules;
  for (py::handle each : steps) {
    if (const Step step(each); !step.module().is_none()) modules.append(step.module());
  }
  return modules;
}

py::tuple path_of(const py::list& steps, const py::dict& names) {
  Path path;
  for (py::handle each : steps) {
    const Step step(each);
    PathStep part = step.spot().part();
    part.runs = !step.module().is_none();
    part.enters = step.enters();
    if (!step.mark().is_none()) part.mark = PyTuple_GET_ITEM(step.mark().ptr(), 0);
    if (part.runs) {
      const ModuleName name = ModuleName::of(step.module().ptr(), names);
      if (!name) throw py::key_error("a module has no name");
      part.text = name.text();
      part.has_state = name.has_state();
    } else if (part.has_text()) {
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
