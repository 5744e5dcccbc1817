// The C++ half of InplaceErrors: what it notes at each operator.
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "amanda/routine_capsule.h"
#include "inplace/graph_nodes.h"
#include "inplace/node_makers.h"
#include "inplace/writes.h"
#include "torch_bindings.h"

namespace amanda::tools::pytorch {

namespace py = pybind11;

void bind_inplace(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<GraphNodes>(m, "GraphNodes", "The numbers of the nodes behind some tensors, without those of leaves.")
      .def(py::init<const std::vector<at::Tensor>&>(), py::arg("tensors"))
      .def("has", &GraphNodes::has, py::arg("number"));

  using Makers = std::shared_ptr<NodeMakers>;
  py::class_<NodeMakers, Makers>(m, "NodeMakers", "Which operator made a node of the backward graph.")
      .def(py::init<>())
      .def(
          "beginning", [](const Makers& made) { return python::capsule_of([made](Values&) { made->begin(); }); },
          "A routine for `_core.NativeRoutine`, before an operator.")
      .def(
          "ending",
          [](const Makers& made, NodeMakers::Maker maker) {
            return python::capsule_of([=](Values&) { made->end(maker); });
          },
          py::arg("maker"), "After the operator, which the caller numbers.")
      .def("of", &NodeMakers::of, py::arg("number"), Unlocked(),
           "The operators that made a node with this `_sequence_nr()`, on any thread.")
      .def("clear", &NodeMakers::clear, Unlocked());

  // In the order of the fields of `_Written` in amanda/tools/inplace/writes.py.
  using Fields = std::tuple<uint32_t, uint32_t, std::optional<uint32_t>, uint32_t, uint32_t,
                            std::optional<std::vector<int64_t>>, std::vector<int64_t>>;
  const auto fields = [](const std::vector<Write>& writes) {
    std::vector<Fields> found;
    for (const Write& write : writes) {
      found.emplace_back(write.site, write.input, write.member, write.before, write.after, write.view, write.shape);
    }
    return found;
  };
  using Held = std::shared_ptr<Writes>;
  py::class_<Writes, Held>(m, "Writes", "The operators that wrote to each storage.")
      .def(py::init<>())
      .def(
          "beginning",
          [](const Held& writes, uint32_t site) {
            return python::capsule_of([=](Values& inputs) { writes->begin(site, inputs); });
          },
          py::arg("site"),
          "A routine for `_core.NativeRoutine`, before an operator, with the inputs that it writes to.")
      .def(
          "ending", [](const Held& writes) { return python::capsule_of([writes](Values&) { writes->end(); }); },
          "After the operator.")
      .def(
          "take_begun",
          [](Writes& writes) {
            using Given = std::vector<std::tuple<uint32_t, std::optional<uint32_t>, at::Tensor>>;
            std::optional<std::pair<uint32_t, Given>> found;
            if (const std::optional<Begun> begun = writes.take_begun()) {
              found.emplace(begun->site, Given{});
              for (const Target& target : begun->targets) {
                found->second.emplace_back(target.input, target.member, target.tensor);
              }
            }
            return found;
          },
          "The operator that began on this thread and did not end, with the tensors that it was to write to. None: "
          "none.")
      .def(
          "to",
          [fields](const Writes& writes, uintptr_t storage) {
            return fields(writes.to(reinterpret_cast<const void*>(storage)));
          },
          py::arg("storage"), "The writes to a storage, which `_cdata` of it names.")
      .def(
          "all",
          [fields](const Writes& writes) {
            std::vector<std::vector<Fields>> found;
            for (const std::vector<Write>& of_storage : writes.all()) found.push_back(fields(of_storage));
            return found;
          },
          "The writes to each live storage.");
}

}  // namespace amanda::tools::pytorch
