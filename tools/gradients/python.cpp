// The recorder of GradientStatistics in Python, and the C++ half of GradientCuts.
#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "amanda/routine_capsule.h"
#include "gradients/gradients.h"
#include "gradients/nonzero_rows.h"
#include "torch_bindings.h"
#include "values/recorder.h"

namespace amanda::tools::pytorch {

namespace py = pybind11;

void bind_gradients(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  // In the order of the fields of `_Norms` in amanda/tools/gradients.py.
  using Fields = std::tuple<int64_t, int64_t, int64_t, int64_t, std::optional<double>, int64_t, double, double, double>;
  using Side = std::pair<int64_t, std::vector<Fields>>;
  bind_recorder<GradientRecorder>(m, "GradientRecorder",
                                  "What GradientStatistics has found of eager backward operators.")
      .def(
          "rows",
          [](const GradientRecorder& recorder) {
            std::vector<std::tuple<OpId, int64_t, std::array<Side, 2>>> rows;
            for (const auto& [id, first_ns, sides] : recorder.rows()) {
              std::array<Side, 2> found;
              for (size_t i = 0; i < found.size(); ++i) {
                found[i].first = sides[i].calls;
                for (const Norms& n : sides[i].norms) {
                  found[i].second.emplace_back(n.undefined, 0, n.nonfinite, n.finite, n.last, n.last_ns, n.min, n.max,
                                               n.sum);
                }
              }
              rows.emplace_back(id, first_ns, std::move(found));
            }
            return rows;
          },
          Unlocked(), "Id, time of the first run, and for both sides calls and the fields of each gradient's norms.");

  using Held = std::shared_ptr<NonzeroRows>;
  py::class_<NonzeroRows, Held>(m, "NonzeroRows", "Which rows of leaves have got a gradient that is not zero, or NaN.")
      .def(py::init<>())
      .def(
          "routine",
          [](const Held& rows) {
            return python::capsule_of([rows, known = std::make_shared<NonzeroRows::Leaves>()](Values& values) {
              return rows->read(values, *known);
            });
          },
          "A routine for `_core.NativeRoutine`, before AccumulateGrad. It declines where the gradient must be read in "
          "Python, and the first gradient of each leaf.")
      .def(
          "add", &NonzeroRows::add, py::arg("number"), py::arg("leaf"), py::arg("rows"), Unlocked(),
          "From now on, the gradients of this leaf are read. `rows`: of bool, contiguous, on the host; true is written "
          "where an element of the gradient is not zero.")
      .def("clear", &NonzeroRows::clear, Unlocked(), "Forgets all leaves.")
      .def("take", &NonzeroRows::take, Unlocked(),
           "The numbers of the leaves that got a gradient since the last call, and whether it was not zero.");
}

}  // namespace amanda::tools::pytorch
