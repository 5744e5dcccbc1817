// Recorders, which keep findings in C++, in Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "amanda/action.h"
#include "amanda/routine_capsule.h"

namespace amanda::tools::pytorch {

/// The binding that recorders have in common.
template <class Recorder>
pybind11::class_<Recorder, std::shared_ptr<Recorder>> bind_recorder(pybind11::module_& m, const char* name,
                                                                    const char* doc) {
  pybind11::class_<Recorder, std::shared_ptr<Recorder>> bound(m, name, doc);
  bound.def(pybind11::init<>())
      .def(
          "routine",
          [](const std::shared_ptr<Recorder>& recorder, OpId id) {
            return python::capsule_of([recorder, id](Values& values) { return recorder->record(values, id); });
          },
          pybind11::arg("op_id"),
          "A routine for `_core.NativeRoutine`. It declines where something must be read in Python.")
      .def("reset", &Recorder::reset, pybind11::call_guard<pybind11::gil_scoped_release>());
  return bound;
}

}  // namespace amanda::tools::pytorch
