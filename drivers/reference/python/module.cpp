// amanda_reference: the reference driver in Python. Import amanda first; not shipped.
#include <pybind11/stl.h>

#include <memory>

#include "amanda/reference/call.h"
#include "amanda/reference/gradient.h"
#include "amanda/reference/graph.h"
#include "bridge.h"

namespace amanda::reference {
namespace {

Operands operands_of(const py::list& objects) {
  Operands operands;
  for (py::handle object : objects) operands.push_back(to_operand(object));
  return operands;
}

py::list objects_of(const Operands& operands) {
  py::list objects;
  for (const Operand& operand : operands) objects.append(to_object(operand));
  return objects;
}

/// The program runs without the interpreter lock, as in frameworks: Python routines take it.
template <class Run>
py::list run(const py::list& inputs, const Run& run) {
  Operands given = operands_of(inputs), results;
  {
    py::gil_scoped_release no_gil;
    results = run(std::move(given));
  }
  return objects_of(results);
}

/// `with place("encoder"):`
struct NamedPlace {
  std::string label;
  std::unique_ptr<Place> entered;
};

const char* name_of(BackwardOps ops) {
  static constexpr const char* kNames[] = {"none", "nodes", "operators", "one"};
  return kNames[static_cast<size_t>(ops)];
}

void bind_eager(py::module_& m) {
  py::class_<Array>(m, "Array")
      .def(py::init<Shape, std::vector<double>>(), py::arg("shape"), py::arg("data"))
      .def_property_readonly("shape", &Array::shape)
      .def_property_readonly("data", &Array::data);
  py::class_<Symbol>(m, "Symbol").def_readonly("name", &Symbol::name);
  py::class_<NamedPlace>(m, "place")
      .def(py::init([](std::string label) {
             return NamedPlace{std::move(label), nullptr};
           }),
           py::arg("label"))
      .def("__enter__", [](NamedPlace& place) { place.entered = std::make_unique<Place>(place.label); })
      .def("__exit__", [](NamedPlace& place, const py::args&) { place.entered.reset(); });
  m.def(
      "call",
      [](const std::string& op, const py::list& inputs) {
        return run(inputs, [&](Operands given) { return call(op, std::move(given)); });
      },
      py::arg("op"), py::arg("inputs"));
  m.def("leaf", &leaf, py::arg("array"));
  m.def("gradient", &gradient, py::arg("leaf"));
  m.def(
      "backward", [](const Array& result, const Array& gradient) { backward(result, gradient); }, py::arg("result"),
      py::arg("gradient"), py::call_guard<py::gil_scoped_release>());
}

void bind_graph(py::module_& m) {
  py::class_<Graph>(m, "Graph")
      .def(py::init<>())
      .def("input", &Graph::input)
      .def("add", &Graph::add, py::arg("op"), py::arg("inputs"), py::arg("name"))
      .def("add_if", &Graph::add_if, py::arg("condition"), py::arg("inputs"), py::arg("taken"), py::arg("other"),
           py::arg("name"))
      .def("add_loop", &Graph::add_loop, py::arg("times"), py::arg("carried"), py::arg("body"), py::arg("name"))
      .def("output", &Graph::output, py::arg("wire"))
      .def("gradients", &Graph::gradients, py::arg("result"), py::arg("of"))
      .def(
          "run",
          [](const Graph& graph, const py::list& inputs) {
            return run(inputs, [&](Operands given) { return graph.run(std::move(given)); });
          },
          py::arg("inputs"))
      .def("node_names", &Graph::node_names)
      .def("builds", [](const Graph& graph) { return graph.cache_info().builds; });
}

}  // namespace
}  // namespace amanda::reference

PYBIND11_MODULE(amanda_reference, m) {
  using namespace amanda::reference;
  m.doc() = "The reference driver in Python, for tests.";
  bind_eager(m);
  bind_graph(m);
  m.def(
      "capabilities",
      [](bool graph) {
        const amanda::Capabilities can = (graph ? Driver::graph() : Driver::eager()).capabilities();
        return py::dict(py::arg("backward") = name_of(can.backward), py::arg("symbolic") = can.symbolic_analysis,
                        py::arg("keeps_gradients") = can.keeps_gradients, py::arg("both_sides") = can.both_sides);
      },
      py::arg("graph"));
  static Bridge eager(Driver::eager()), graph(Driver::graph());
  static amanda::python::BridgeCapsule capsules[] = {{&Driver::eager(), &eager}, {&Driver::graph(), &graph}};
  const py::object register_bridge = py::module_::import("amanda._core").attr("register_bridge");
  for (auto& capsule : capsules) register_bridge(py::capsule(&capsule, amanda::python::kBridgeCapsule));
}
