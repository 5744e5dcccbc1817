// amanda._tensorflow: the nodes that run taps. The same library holds their op, for tf.load_op_library().
#include <dlfcn.h>
#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "amanda/driver/engine.h"
#include "amanda/error.h"
#include "collected.h"
#include "dtypes.h"
#include "errors.h"
#include "kernel.h"
#include "py_operator.h"
#include "runs.h"
#include "tap_node.h"

namespace amanda::tensorflow {
namespace {

namespace py = pybind11;

using PyOperator = python::PyOperator<Operator>;

/// Owns those of a TapNode.
struct PyTapNode : NoCopy {
  PyTapNode(std::shared_ptr<const TapNode> made, py::object op, py::object original)
      : node(std::move(made)), op(std::move(op)), original(std::move(original)) {
    if (!this->original.is_none()) node->original = this->original.ptr();
    TapNode::add(node);
  }
  ~PyTapNode() { clear(); }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(op.ptr());
    Py_VISIT(original.ptr());
    return 0;
  }
  void clear() {
    node->original = nullptr;
    original = py::none();
    op = py::none();
  }

  const std::shared_ptr<const TapNode> node;
  py::object op, original;
};

std::unique_ptr<PyOperator> make_operator(const std::string& backend, OpType type, OpId id, size_t num_inputs,
                                          size_t num_outputs, std::string module_path, std::string source,
                                          py::object refuse, const PyOperator* forward) {
  auto made = std::make_shared<const Operator>(
      Operator{{python::backend_named(backend, type, "tensorflow"), type, id, std::move(module_path), std::move(source),
                forward ? forward->op : nullptr},
               num_inputs,
               num_outputs});
  return std::make_unique<PyOperator>(std::move(made), std::move(refuse),
                                      forward ? py::cast(forward) : py::object(py::none()));
}

using Arg = std::tuple<std::string, size_t, int>;
using Result = std::tuple<size_t, int>;

std::unique_ptr<PyTapNode> make_tap_node(const PyOperator& op, uint64_t tap_id, const std::vector<Arg>& args,
                                         const std::vector<Result>& results, py::object original,
                                         const std::vector<std::optional<std::vector<std::optional<int64_t>>>>& sizes) {
  std::vector<TensorPosition> from, to;
  for (const auto& [side, position, member] : args) {
    if (side != "input" && side != "output") {
      throw py::value_error(fmt::format("[tensorflow] an argument is an \"input\" or an \"output\", got \"{}\"", side));
    }
    from.push_back({side == "input" ? Side::kInputs : Side::kOutputs, position, member});
  }
  const TapPtr tap = Engine::tap(tap_id);
  const bool before = tap && tap->point() == Point::kBefore;
  for (const auto& [position, member] : results) {
    to.push_back({before ? Side::kInputs : Side::kOutputs, position, member});
  }
  Shapes shapes;
  for (const auto& known : sizes) {
    shapes.emplace_back();
    if (!known) continue;
    shapes.back().emplace();
    for (const std::optional<int64_t>& size : *known) shapes.back()->push_back(size.value_or(kUnknown));
  }
  auto made = std::make_shared<const TapNode>(op.op, tap_id, from, to, std::move(shapes));
  return std::make_unique<PyTapNode>(std::move(made), py::cast(op), std::move(original));
}

std::string library_path() {
  register_op();  // if this was imported before TensorFlow
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&register_op), &info)) throw Error("[tensorflow] dladdr failed");
  return info.dli_fname;
}

void bind_nodes(py::module_& m) {
  py::class_<PyOperator>(m, "Operator", "An operator of a graph while it runs.", python::collected<PyOperator>())
      .def(py::init(&make_operator), py::arg("backend"), py::arg("type"), py::arg("id"), py::arg("num_inputs"),
           py::arg("num_outputs"), py::kw_only(), py::arg("module_path") = "", py::arg("source") = "",
           py::arg("refuse") = py::none(), py::arg("forward") = static_cast<PyOperator*>(nullptr),
           "`num_inputs`, `num_outputs`: positions; of a backward operator (with `forward=`), its grad_outputs and "
           "grad_inputs. `refuse(point, position)`: as of OpSite.");
  py::class_<PyTapNode>(m, "TapNode", "A tap, and the tensors of its node.", python::collected<PyTapNode>())
      .def(py::init(&make_tap_node), py::arg("operator"), py::arg("tap_id"), py::arg("args"), py::arg("results"),
           py::arg("original") = py::none(), py::kw_only(),
           py::arg("shapes") = std::vector<std::optional<std::vector<std::optional<int64_t>>>>{},
           "`args`: (\"input\" or \"output\", position, member) for each argument of the node; the member of a list, "
           "otherwise -1. `results`: (position, member) for each of its results, on the tap's own side. "
           "`original(*inputs)`: the operator, for a tap in its place. `shapes`: what the graph knows of its results: "
           "lists of sizes, None where nothing is known. Keep it as long as the graph of its tools may run.")
      .def_property_readonly(
          "number", [](const PyTapNode& node) { return node.node->number(); }, "For the node's attribute `node`.");
}

}  // namespace
}  // namespace amanda::tensorflow

PYBIND11_MODULE(_tensorflow, m) {
  using namespace amanda::tensorflow;
  m.doc() = "The TensorFlow driver's nodes in graphs. It needs no TensorFlow to be imported.";
  bind_nodes(m);
  m.def("begin_run", &begin_run, "An instrumented run begins on this thread.");
  m.def("end_run", &end_run, "The last run that began on this thread ends.", py::call_guard<py::gil_scoped_release>());
  m.def(
      "raise_error",
      [](const std::string& message) {
        if (const std::exception_ptr error = take_error(message)) std::rethrow_exception(error);
      },
      py::arg("message"),
      "Raises the exception that a routine raised, if this is the message of the error that it ended with.");
  m.def(
      "set_dtypes",
      [](const py::dict& dtypes) {
        for (auto [type, shown] : dtypes) {
          const auto [numpy, name] = shown.cast<std::pair<py::object, std::string>>();
          const auto item_size = numpy.attr("itemsize").cast<size_t>();
          add_dtype(type.cast<DataType>(), {py::object(numpy).release().ptr(), name, item_size});
        }
      },
      py::arg("dtypes"), "{TF_DataType: (numpy dtype, name)}: the types whose tensors routines see.");
  m.def(
      "check",
      [] {
        const CApi* api = find_c_api();
        return api ? api->missing : std::vector<std::string>{"libtensorflow_framework.so.2"};
      },
      "The functions that this process's TensorFlow lacks; the library's name if it is not loaded.");
  m.def("library_path", &library_path, "For tf.load_op_library().");
}
