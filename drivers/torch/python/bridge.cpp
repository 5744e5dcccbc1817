#include "python/bridge.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "amanda/driver/engine.h"
#include "amanda/torch.h"
#include "backward/node_call.h"
#include "base/op_types.h"
#include "base/tensor_handle.h"
#include "forward/stack_call.h"
#include "python/errors.h"
#include "python/operands.h"
#include "thread/guards.h"

namespace amanda::python {
namespace {

// A gradient is shown as itself, as by PyTorch's own hooks. The engine then knows whether it is still referenced, and
// neither takes it over as a leaf's .grad nor adds to it in place. (Gradients include no result that the program could
// pass to nn.Parameter.)
PyObject* show_gradient(const pytorch::NodeCall& call, Side side, size_t position) {
  const at::Tensor* gradient = call.gradient(side, position);
  return gradient ? THPVariable_Wrap(*gradient) : Py_NewRef(Py_None);
}

const c10::Argument& forward_argument_of(const OpSite& site, Side side, size_t position) {
  const c10::FunctionSchema& schema = pytorch::op_types().of(site.forward_type()).schema;
  const auto& arguments = side == Side::kOutputs ? schema.returns() : schema.arguments();
  static const auto* of_function = new c10::Argument("", c10::AnyType::get());  // a Python function has no schema
  return position < arguments.size() ? arguments[position] : *of_function;
}

const c10::Argument& argument_of(const OpSite& site, Side side, size_t position) {
  static const auto* gradient = new c10::Argument("", c10::OptionalType::create(c10::TensorType::get()));
  if (site.phase() == Phase::kBackward) return *gradient;
  const c10::FunctionSchema& schema = static_cast<const pytorch::ForwardCall&>(site).record().schema;
  return side == Side::kOutputs ? schema.returns()[position] : schema.arguments()[position];
}

PyObject* show_results(const torch::jit::Stack& stack, const pytorch::OpRecord& record) {
  const pytorch::OriginalResults* kept = nullptr;
  if (pytorch::RoutineState::current()) kept = &pytorch::RoutineState::keep({record.type, stack});
  auto result = [&](size_t i) {
    if (stack[i].isTensor()) return THPVariable_Wrap(kept ? kept->shown(i) : stack[i].toTensor());
    return torch::jit::toPyObject(stack[i]).release().ptr();
  };
  if (stack.empty()) return Py_NewRef(Py_None);
  if (stack.size() == 1) return result(0);
  PyObject* tuple = PyTuple_New(record.schema.returns().size());
  for (size_t i = 0; i < stack.size(); ++i) PyTuple_SET_ITEM(tuple, i, result(i));
  return tuple;
}

void keep_shown(PyObject* object, const c10::IValue& operand) {
  if (!operand.isTensor() || !THPVariable_Check(object)) return;
  const at::Tensor& shown = THPVariable_Unpack(object);
  if (!shown.is_same(operand.toTensor())) pytorch::RoutineState::keep_shown(shown, operand.toTensor());
}

void put_back_shown(torch::jit::Stack& stack) {
  const pytorch::OperandHandles* handles = pytorch::RoutineState::operand_handles();
  if (!handles) return;
  for (c10::IValue& argument : stack) argument = handles->behind(argument);
}

bool has_attributes(PyObject* object) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict && *dict && PyDict_GET_SIZE(*dict) > 0;
}

// The operator's result at this position, if the routine got it and returns it; otherwise null.
const c10::IValue* original_result(const OpSite& site, Side side, size_t position, PyObject* object) {
  if (site.phase() != Phase::kForward || side != Side::kOutputs) return nullptr;
  const pytorch::OriginalResults* kept = pytorch::RoutineState::kept(site.type());
  if (!kept) return nullptr;
  if (object == Py_None) return kept->behind(position, at::Tensor());
  if (!THPVariable_Check(object) || has_attributes(object)) return nullptr;
  return kept->behind(position, THPVariable_Unpack(object));
}

// Any argument may be passed by position: keyword-only ones are moved to the keywords.
std::pair<py::tuple, py::kwargs> by_schema(const c10::FunctionSchema& schema, const py::tuple& args, PyObject* kwargs) {
  size_t positional = 0;
  while (positional < schema.arguments().size() && !schema.arguments()[positional].kwarg_only()) ++positional;
  py::kwargs named;
  if (kwargs) PyDict_Update(named.ptr(), kwargs);
  for (size_t i = positional; i < std::min(args.size(), schema.arguments().size()); ++i) {
    named[schema.arguments()[i].name().c_str()] = args[i];
  }
  if (args.size() <= positional || args.size() > schema.arguments().size()) return {args, named};
  return {py::reinterpret_steal<py::tuple>(PyTuple_GetSlice(args.ptr(), 0, positional)), named};
}

PyObject* call_node(OpType type, OpId id, const py::tuple& args, PyObject* kwargs) {
  const std::string& name = pytorch::node_types().of(type).info.name;
  auto refuse = [&](const std::string& why) {
    PyErr_SetString(PyExc_TypeError, ("[torch] " + name + why).c_str());
    return nullptr;
  };
  if (kwargs && PyDict_GET_SIZE(kwargs) > 0) return refuse(" takes its grad_outputs by position");
  pytorch::NodeCall* running = pytorch::NodeCall::current(type, id);
  if (!running) {
    throw Error("[torch] " + name + " can be called only by a routine, on the thread and while that operator runs");
  }
  pytorch::variable_list gradients;
  for (py::handle arg : args) {
    if (!arg.is_none() && !THPVariable_Check(arg.ptr())) {
      return refuse(" takes tensors or None, got " + py::repr(arg).cast<std::string>());
    }
    gradients.push_back(arg.is_none() ? at::Tensor() : THPVariable_Unpack(arg.ptr()));
  }
  {
    py::gil_scoped_release no_gil;
    gradients = running->call_original(std::move(gradients));
  }
  py::tuple results(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    results[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(gradients[i]));
  }
  return (results.size() == 1 ? py::object(results[0]) : results).release().ptr();
}

PyObject* call_operator(OpType type, OpId id, PyObject* args, PyObject* kwargs) {
  const pytorch::OpRecord& record = pytorch::op_types().of(type);
  const auto op = c10::Dispatcher::singleton().findSchema({record.schema.name(), record.schema.overload_name()});
  if (!op) throw Error(c10::str("[torch] ", record.info.schema, " is no longer registered"));
  auto [positional, named] = by_schema(record.schema, py::reinterpret_borrow<py::tuple>(args), kwargs);
  torch::jit::Stack stack =
      torch::jit::createStackForSchema(record.schema, torch::jit::tuple_slice(positional), named, std::nullopt);
  put_back_shown(stack);
  {
    py::gil_scoped_release no_gil;
    pytorch::StackCall call(record, *op, stack, id);
    Engine::call_original(call);
  }
  return show_results(stack, record);
}

}  // namespace

[[gnu::hot]] PyObject* TorchBridge::to_python(OpSite& site, Side side, size_t position) {
  if (site.phase() == Phase::kBackward) {
    return show_gradient(static_cast<const pytorch::NodeCall&>(site), side, position);
  }
  const at::Tensor* tensor = static_cast<const pytorch::ForwardCall&>(site).unboxed_tensor(side, position);
  if (tensor) return show(*tensor);
  const Value value = site.get(side, position);
  if (!value.ref) return Py_NewRef(Py_None);
  return show(pytorch::ivalue(value), argument_of(site, side, position));
}

void TorchBridge::give_replacement(OpSite& site, size_t position, PyObject* object) {
  if (site.phase() == Phase::kBackward) return;  // gradients are shown as themselves
  const Value value = site.get(Side::kInputs, position);
  if (!value.ref) return;
  const c10::IValue& operand = pytorch::ivalue(value);
  keep_shown(object, operand);
  if (!operand.isList() || !PyList_Check(object)) return;
  const auto members = operand.toListRef();
  for (size_t i = 0; i < members.size(); ++i) keep_shown(PyList_GET_ITEM(object, i), members[i]);
}

PyObject* TorchBridge::forward_to_python(OpSite& site, Side side, size_t position) {
  const Value value = site.forward_get(side, position);
  if (!value.ref) return Py_NewRef(Py_None);
  return show(pytorch::ivalue(value), forward_argument_of(site, side, position));
}

void TorchBridge::from_python(OpSite& site, Side side, size_t position, PyObject* object,
                              const std::function<void(Value)>& put) {
  if (const c10::IValue* result = original_result(site, side, position, object)) {
    return put({const_cast<c10::IValue*>(result)});
  }
  c10::IValue value = take(object, argument_of(site, side, position));
  put({&value});
}

bool TorchBridge::is_operand(OpSite& site, size_t position, PyObject* object) {
  const Value value = site.get(Side::kInputs, position);
  if (!value.ref || !pytorch::ivalue(value).isTensor() || !THPVariable_Check(object)) return false;
  const at::Tensor& shown = THPVariable_Unpack(object);
  const pytorch::OperandHandles* handles = pytorch::RoutineState::operand_handles();
  return pytorch::ivalue(value).toTensor().is_same(handles ? handles->behind(shown) : shown);
}

bool TorchBridge::is_result(OpSite& site, size_t position, PyObject* object) {
  return original_result(site, Side::kOutputs, position, object) != nullptr;
}

PyObject* TorchBridge::without_graph(PyObject* object) {
  if (!THPVariable_Check(object)) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (!tensor.requires_grad() || tensor.is_leaf()) return nullptr;
  return THPVariable_Wrap(pytorch::alias_of(tensor));
}

bool TorchBridge::is_list(OpSite& site, Side side, size_t position) {
  const c10::Type* type = element(argument_of(site, side, position).type());
  return type->kind() == c10::TypeKind::ListType;
}

PyObject* TorchBridge::call(OpType type, OpId id, PyObject* args, PyObject* kwargs) {
  try {
    return pytorch::is_node_type(type) ? call_node(type, id, py::reinterpret_borrow<py::tuple>(args), kwargs)
                                       : call_operator(type, id, args, kwargs);
  } catch (python_error& error) {
    error.restore();
  } catch (const c10::Error&) {  // as torch's own bindings show it
    torch::translate_exception_to_python(std::current_exception());
  }
  mark_as_operators();
  return nullptr;
}

PyObject* TorchBridge::python_exception(const std::exception_ptr& error) { return carried_exception(error); }

void TorchBridge::raise_error() {
  keep_type_error();
  python_error error;
  error.persist();  // stores the current error, so that it survives threads and guards
  throw error;
}

}  // namespace amanda::python
