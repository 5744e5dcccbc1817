// The functions that GraphTracing calls in Python.
#include <memory>
#include <utility>
#include <vector>

#include "amanda/routine_capsule.h"
#include "graph/storages.h"
#include "torch_bindings.h"

namespace amanda::tools::pytorch {

namespace py = pybind11;

void bind_storages(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<Storages::Read>(m, "Read", "A tensor as an operator consumed it.");
  py::class_<Storages, std::shared_ptr<Storages>>(m, "Storages", "Which operators made the tensors that are alive.")
      .def(py::init<size_t>(), py::arg("max_views"))
      .def(
          "routines",
          [](const std::shared_ptr<Storages>& storages, NodeNumber node, std::vector<size_t> written,
             std::vector<size_t> returned) {
            const auto op = std::make_shared<const Storages::Operator>(
                Storages::Operator{node, std::move(written), std::move(returned)});
            return std::pair(
                python::capsule_of([storages, op](Values& values) { return storages->before(values, *op); }),
                python::capsule_of([storages, op](Values& values) { return storages->after(values, *op); }));
          },
          py::arg("node"), py::arg("written"), py::arg("returned"),
          "For `_core.NativeRoutine`, before and after an operator. They decline where the graph grows.")
      .def_static("declined_reads", &Storages::declined_reads,
                  "What the operator consumed whose second routine alone has just declined.")
      .def("add_node", &Storages::add_node, py::arg("node"), Unlocked(), "The graph has it now.")
      .def("is_new_outside", &Storages::is_new_outside, py::arg("tensor"), Unlocked(),
           "Is the tensor from outside, and was it not consumed before?")
      .def(
          "read",
          [](Storages& storages, const at::Tensor& tensor, NodeNumber consumer, int64_t position, int64_t member,
             NodeNumber outside) {
            auto [read, edges] = storages.read(tensor, {consumer, position, member}, outside);
            std::vector<NodeNumber> producers;
            for (const GraphEdge& edge : edges) producers.push_back(edge.producer);
            return std::pair(std::move(read), std::move(producers));
          },
          py::arg("tensor"), py::arg("consumer"), py::arg("position"), py::arg("member"), py::arg("outside"),
          Unlocked(),
          "The tensor is consumed: what was read, and its producers. outside: where it comes from, if it is new; or "
          "-1.")
      .def("write", &Storages::write, py::arg("tensor"), py::arg("writer"), Unlocked())
      .def("make", &Storages::make, py::arg("tensor"), py::arg("maker"), py::arg("reads"), Unlocked())
      .def("sizes", &Storages::sizes, Unlocked(), "For each storage, how many layouts and last writes are kept.")
      .def("reset", &Storages::reset, Unlocked());
}

}  // namespace amanda::tools::pytorch
