#include "module.h"

namespace amanda::python {

void bind_action(py::module_& m) {
  py::class_<Action>(m, "Action", "A scheduled routine.")
      .def("remove", &Action::remove, "Takes it out, from the operator's next run on; any number of times.")
      .def_property_readonly("removed", &Action::removed, "Was it removed?");
}

}  // namespace amanda::python
