#include "bridge.h"

#include <string>
#include <utility>

#include "amanda/driver/engine.h"
#include "amanda/error.h"
#include "operator_call.h"
#include "tape.h"

namespace amanda::reference {
namespace {

PyObject* show(Value value) { return value.ref ? to_object(operand(value)).release().ptr() : Py_NewRef(Py_None); }

}  // namespace

py::object to_object(const Operand& operand) {
  return std::visit(
      [](const auto& held) -> py::object {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::vector<Array>>) {
          py::list list;
          for (const Array& array : held) list.append(py::cast(array));
          return list;
        } else {
          return py::cast(held);
        }
      },
      operand);
}

Operand to_operand(py::handle object) {
  if (py::isinstance<Array>(object)) return object.cast<Array>();
  if (PyFloat_Check(object.ptr())) return object.cast<double>();
  if (PyList_Check(object.ptr())) {
    std::vector<Array> arrays;
    for (py::handle item : object) arrays.push_back(std::get<Array>(to_operand(item)));
    return arrays;
  }
  throw python::ConversionError(std::string("got ") + Py_TYPE(object.ptr())->tp_name + " where an array is needed");
}

PyObject* Bridge::to_python(OpSite& site, Side side, size_t position) { return show(site.get(side, position)); }

PyObject* Bridge::forward_to_python(OpSite& site, Side side, size_t position) {
  return show(site.forward_get(side, position));
}

void Bridge::from_python(OpSite&, Side, size_t, PyObject* object, const std::function<void(Value)>& put) {
  if (object == Py_None) return put({});  // an undefined gradient
  const Operand operand = to_operand(object);
  put(value(operand));
}

PyObject* Bridge::call(OpType type, OpId id, PyObject* args, PyObject*) {
  const Operator& op = operator_of(type);
  if (!op.kernel) throw Error("[reference] " + op.info.name + " can't be called from Python");
  Operands inputs;
  for (py::handle arg : py::reinterpret_borrow<py::tuple>(args)) inputs.push_back(to_operand(arg));
  OperatorCall call(driver_, op, id, "", std::move(inputs));
  {
    py::gil_scoped_release no_gil;
    Engine::call_original(call);
  }
  py::list results;
  for (const Operand& result : call.results()) results.append(to_object(result));
  return (results.size() == 1 ? py::object(results[0]) : py::object(py::tuple(results))).release().ptr();
}

bool Bridge::is_list(OpSite& site, Side side, size_t position) {
  const Value value = site.get(side, position);
  return value.ref && std::holds_alternative<std::vector<Array>>(operand(value));
}

bool Bridge::is_operand(OpSite& site, size_t position, PyObject* object) {
  const Value value = site.get(Side::kInputs, position);
  if (!value.ref || !std::holds_alternative<Array>(operand(value)) || !py::isinstance<Array>(object)) return false;
  const Array &given = array(value), &shown = py::handle(object).cast<const Array&>();
  return shown.shares_data(given) && shown.gradient_state() == given.gradient_state();
}

PyObject* Bridge::without_graph(PyObject* object) {
  if (!py::isinstance<Array>(object)) return nullptr;
  const Array& array = py::handle(object).cast<const Array&>();
  if (!array.gradient_state()->made_by.node) return nullptr;
  return py::cast(array.reshaped(array.shape())).release().ptr();
}

PyObject* Bridge::python_exception(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const py::error_already_set& raised) {
    return py::object(raised.value()).release().ptr();
  } catch (...) {
    return nullptr;
  }
}

}  // namespace amanda::reference
