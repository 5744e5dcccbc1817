#include "python/identity/path.h"

namespace amanda::python {

namespace py = pybind11;

void Path::add(const PathStep& step) {
  if (source_.empty()) source_ = step.source;
  if (modules_ == traced_.running + 1 && step.runs_region) ++traced_.running;
  if (modules_ == traced_.running && traced_.name.empty()) traced_.name = step.traced;
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

}  // namespace amanda::python
