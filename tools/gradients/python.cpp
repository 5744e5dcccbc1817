// The recorder of GradientStatistics in Python.
#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "gradients/gradients.h"
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
}

}  // namespace amanda::tools::pytorch
