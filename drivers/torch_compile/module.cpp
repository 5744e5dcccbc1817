// amanda._torch_compile: the operators that run taps in compiled code, and the tables in which they look up data.
// torch's pybind11 and Python headers come first.
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "amanda/error.h"
#include "autocast.h"
#include "collected.h"
#include "py_operator.h"
#include "table.h"

namespace amanda::pytorch {
namespace {

using PyOperator = python::PyOperator<Operator>;

struct PySlot {
  std::shared_ptr<const Slot> slot;
};

struct PyAutocast {
  std::vector<int64_t> state;
  std::optional<WithAutocast> entered{};
};

std::unique_ptr<PyOperator> make_operator(const std::string& backend, OpType type, OpId id, const std::string& name,
                                          const std::string& overload, std::string module_path, std::string source,
                                          py::object refuse, const PyOperator* forward) {
  auto made = std::make_shared<const Operator>(
      Operator{{python::backend_named(backend, type, "compile"), type, id, std::move(module_path), std::move(source),
                forward ? forward->op : nullptr},
               c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str())});
  return std::make_unique<PyOperator>(std::move(made), std::move(refuse),
                                      forward ? py::cast(forward) : py::object(py::none()));
}

/// None; ("tensor", i); ("number", i); ("constant", value); or a list of these.
Operand operand_from(py::handle object, const c10::TypePtr& type) {
  using Kind = Operand::Kind;
  if (object.is_none()) return {};
  Operand made;
  if (py::isinstance<py::list>(object)) {
    made.kind = Kind::kList;
    for (py::handle member : object) made.members.push_back(operand_from(member, member_type(type)));
    return made;
  }
  const auto [kind, value] = object.cast<std::pair<std::string, py::object>>();
  if (kind == "constant") {
    made.kind = Kind::kConstant;
    made.constant = torch::jit::toIValue(value, type);
    return made;
  }
  if (kind != "tensor" && kind != "number") throw py::value_error("[compile] no kind of operand: " + kind);
  made.kind = kind == "tensor" ? Kind::kTensor : Kind::kNumber;
  made.index = value.cast<size_t>();
  return made;
}

std::vector<Operand> operands_from(const py::list& objects, const PyOperator& op, Side side) {
  std::vector<Operand> operands;
  const c10::FunctionSchema& schema = op.op->op.schema();
  const auto& arguments = side == Side::kOutputs ? schema.returns() : schema.arguments();
  for (size_t i = 0; i < objects.size(); ++i) {
    operands.push_back(operand_from(objects[i], op.op->forward ? c10::AnyType::get() : arguments.at(i).type()));
  }
  return operands;
}

using PyForm = std::pair<py::object, std::vector<std::optional<int64_t>>>;

PySlot make_slot(const PyOperator& op, const std::vector<uint64_t>& taps, const py::list& inputs,
                 const py::list& outputs, size_t num_tensors, const std::vector<PyForm>& forms) {
  std::vector<Form> known;
  for (const auto& [dtype, sizes] : forms) {
    known.push_back(
        {dtype.is_none() ? at::ScalarType::Undefined : reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type, sizes});
  }
  return {std::make_shared<const Slot>(op.op, taps, operands_from(inputs, op, Side::kInputs),
                                       operands_from(outputs, op, Side::kOutputs), num_tensors, std::move(known))};
}

std::shared_ptr<Table> make_table(const std::vector<PySlot>& slots) {
  std::vector<std::shared_ptr<const Slot>> known;
  for (const PySlot& slot : slots) known.push_back(slot.slot);
  return std::make_shared<Table>(std::move(known));
}

}  // namespace
}  // namespace amanda::pytorch

PYBIND11_MODULE(_torch_compile, m) {
  using namespace amanda::pytorch;
  m.doc() = "The operators that run taps in code that torch.compile has compiled.";
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const amanda::Error& e) {
      PyErr_SetString(py::module_::import("amanda._core").attr("Error").ptr(), e.what());
    }
  });
  py::class_<PyOperator>(m, "Operator", "An operator of a compiled program while it runs.",
                         amanda::python::collected<PyOperator>())
      .def(py::init(&make_operator), py::arg("backend"), py::arg("type"), py::arg("id"), py::arg("name"),
           py::arg("overload"), py::kw_only(), py::arg("module_path") = "", py::arg("source") = "",
           py::arg("refuse") = py::none(), py::arg("forward") = static_cast<PyOperator*>(nullptr),
           "`name`, `overload`: what it calls, \"aten::linear\" and \"\"; for a backward operator (with `forward=`), "
           "what it is the derivative of. `refuse(point, position)`: as of OpSite.");
  py::class_<PyAutocast>(m, "Autocast", "A context in which autocast is as a node has noted it.")
      .def(py::init([](std::vector<int64_t> state) { return std::make_unique<PyAutocast>(std::move(state)); }),
           py::arg("state"))
      .def("__enter__", [](PyAutocast& self) { self.entered.emplace(self.state); })
      .def("__exit__", [](PyAutocast& self, const py::args&) { self.entered.reset(); });
  py::class_<PySlot>(m, "Slot", "What a node of a compiled graph does: its taps, and which of its tensors is which.")
      .def(py::init(&make_slot), py::arg("operator"), py::arg("tap_ids"), py::arg("inputs"), py::arg("outputs"),
           py::arg("num_tensors"), py::arg("forms") = std::vector<PyForm>(),
           "`inputs`, `outputs`: for each position None, (\"tensor\", number), (\"number\", number), (\"constant\", "
           "value), or a list of these. `forms`: for each tensor the dtype and the sizes that a replacement must give "
           "it; a size of None is left open, and a dtype of None says nothing.");
  py::class_<Table, std::shared_ptr<Table>>(m, "Table", "The slots of one instance of a graph under one toolset.")
      .def(py::init(&make_table), py::arg("slots"))
      .def_property_readonly(
          "tensor", [](Table& table) { return table.tensor(); },
          "For the graph's placeholder. It keeps the table alive.")
      .def_property_readonly(
          "number", [](const Table& table) { return table.number(); }, "Its value: never used again.");
}
