#include "routine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "action.h"
#include "foreign_thread.h"
#include "run.h"

namespace amanda::python {
namespace {

thread_local OpCall* current = nullptr;

struct Running {
  explicit Running(OpCall& call) : here(current), outer(std::exchange(here, &call)) {}
  ~Running() { here = outer; }
  OpCall*& here;  // this thread's: to find it costs a call
  OpCall* outer;
};

std::string name_of(py::handle callable) {
  py::object name = py::getattr(callable, "__name__", py::none());
  return text_of(py::isinstance<py::str>(name) ? name : py::str(py::type::of(callable).attr("__name__")));
}

// The operands that were passed to the routine, if it asked for some of them only.
std::string selected_operands(const Values& values) {
  constexpr size_t kMost = 4;
  if (values.size() == values.call().size(side_of(values.point())) || values.size() > kMost) return "";
  std::string operands;
  for (size_t i = 0; i < values.size(); ++i) operands += (i == 0 ? ", given " : ", ") + values.operand(i);
  return operands;
}

bool is_sequence(PyObject* object) { return PyTuple_Check(object) || PyList_Check(object); }
Py_ssize_t length(PyObject* sequence) { return PySequence_Fast_GET_SIZE(sequence); }
PyObject* item(PyObject* sequence, Py_ssize_t i) { return PySequence_Fast_GET_ITEM(sequence, i); }

/// Operands passed to a routine, released together.
class Operands : NoCopy {
 public:
  explicit Operands(size_t most) {
    if (most + 1 > few_.size()) many_.resize(most + 1);
  }
  ~Operands() {
    for (size_t i = 0; i < count_; ++i) Py_DECREF(first()[i]);
  }
  void push(PyObject* owned) { first()[count_++] = owned; }
  PyObject** first() { return slots() + 1; }  // vectorcall uses slot 0

 private:
  PyObject** slots() { return many_.empty() ? few_.data() : many_.data(); }

  size_t count_ = 0;
  std::array<PyObject*, 12> few_;  // no allocation for most operators; not initialised
  std::vector<PyObject*> many_;
};

PyObject* shown_inputs(Values& values, PythonBridge& bridge) {
  const size_t count = values.num_inputs();
  py::tuple inputs(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* input = bridge.to_python(values.call(), Side::kInputs, values.input_position(i));
    if (!input) bridge.raise_error();
    PyTuple_SET_ITEM(inputs.ptr(), i, input);
  }
  return inputs.release().ptr();
}

}  // namespace

OpCall* running_call() { return current; }

PyRoutine::PyRoutine(py::object callable, const py::dict& kwargs, bool with_run, const char* inputs_name)
    : with_run_(with_run), shows_inputs_(inputs_name != nullptr), name_(name_of(callable)) {
  callable_ = PyRef(callable.release().ptr());
  const size_t count = kwargs.size() + shows_inputs_ + with_run;
  if (count == 0) return;
  PyObject* names = PyTuple_New(count);
  PyObject* values = PyTuple_New(count);
  Py_ssize_t i = 0;
  for (auto [name, value] : kwargs) {
    PyTuple_SET_ITEM(names, i, py::object(py::reinterpret_borrow<py::object>(name)).release().ptr());
    PyTuple_SET_ITEM(values, i++, py::object(py::reinterpret_borrow<py::object>(value)).release().ptr());
  }
  auto add_own = [&](const char* name) {
    PyTuple_SET_ITEM(names, i, PyUnicode_InternFromString(name));
    PyTuple_SET_ITEM(values, i++, Py_NewRef(Py_None));  // each execution has its own
  };
  if (inputs_name) add_own(inputs_name);
  if (with_run) add_own("run");
  names_ = PyRef(names);
  values_ = PyRef(values);
}

void PyRoutine::retire() {
  callable_.reset();
  names_.reset();
  values_.reset();
}

int PyRoutine::traverse(visitproc visit, void* arg) const {
  Py_VISIT(callable_.get());
  Py_VISIT(names_.get());
  Py_VISIT(values_.get());
  return 0;
}

[[gnu::hot]] void PyRoutine::operator()(Values& values) {
  const RoutineEntry entry;
  if (entry.is_refused()) return;
  drain_released();
  // From here on, any Python code may retire this routine, by clearing the cache or leaving the scope.
  const auto callable = py::reinterpret_borrow<py::object>(callable_.get());
  if (!callable) return;  // retired
  const auto names = py::reinterpret_borrow<py::object>(names_.get());
  const auto kwargs = py::reinterpret_borrow<py::object>(values_.get());
  const size_t selected = values.size();
  const size_t keywords = names ? PyTuple_GET_SIZE(names.ptr()) : 0;
  PythonBridge& bridge = bridge_of(values.call().backend());
  const Point point = values.point();
  const Side side = side_of(point);

  Operands operands(selected + keywords);
  if (selected > 0 || shows_inputs_) values.watch();
  for (size_t i = 0; i < selected; ++i) {
    PyObject* operand = bridge.to_python(values.call(), side, values.position(i));
    if (!operand) bridge.raise_error();
    operands.push(operand);
  }
  if (point == Point::kReplace) {
    for (size_t i = 0; i < selected; ++i)
      bridge.give_replacement(values.call(), values.position(i), operands.first()[i]);
  }
  const size_t given = keywords - shows_inputs_ - with_run_;  // with the routine
  for (size_t i = 0; i < given; ++i) operands.push(Py_NewRef(PyTuple_GET_ITEM(kwargs.ptr(), i)));
  if (shows_inputs_) operands.push(shown_inputs(values, bridge));
  if (with_run_) operands.push(run_of(values));
  const Running here(values.call());
  PyObject* result =
      PyObject_Vectorcall(callable.ptr(), operands.first(), selected | PY_VECTORCALL_ARGUMENTS_OFFSET, names.ptr());
  if (!result) {
    add_note(
        fmt::format("[amanda] in tool '{}': {}{}", values.tool().name(), values.where(), selected_operands(values)));
    bridge.raise_error();
  }
  const auto held = py::reinterpret_steal<py::object>(result);
  if (point == Point::kReplace) return put_results(values, operands.first(), result);
  if (result != Py_None) put_edits(values, operands.first(), result);
}

void PyRoutine::put_edits(Values& values, PyObject** operands, PyObject* result) {
  const size_t selected = values.size();
  PythonBridge& bridge = bridge_of(values.call().backend());
  const Side side = side_of(values.point());
  auto put = [&](size_t i, PyObject* value) {
    if (value == operands[i] || value == Py_None) return;
    try {
      bridge.from_python(values.call(), side, values.position(i), value,
                         [&](Value converted) { values.set(i, converted); });
    } catch (const ConversionError& reason) {
      values.fail(fmt::format("{}: {}", values.operand(i), reason.what()));
    }
  };
  if (selected == 1) {
    if (result == operands[0]) return;
    const bool value_itself =
        !is_sequence(result) || (PyList_Check(result) && bridge.is_list(values.call(), side, values.position(0)));
    if (value_itself) return put(0, result);
  }
  const Py_ssize_t returned = is_sequence(result) ? length(result) : 1;
  if (!is_sequence(result) || static_cast<size_t>(returned) != selected) {
    values.fail(
        fmt::format("it returned {} value{} for {} selected position{}; return None to keep them all, or one value "
                    "for each",
                    returned, returned == 1 ? "" : "s", selected, selected == 1 ? "" : "s"));
  }
  for (size_t i = 0; i < selected; ++i) put(i, item(result, i));
}

void PyRoutine::put_results(Values& values, PyObject** operands, PyObject* result) {
  const size_t expected = values.num_results();
  PythonBridge& bridge = bridge_of(values.call().backend());
  auto put = [&](size_t i, PyObject* value) {
    // An operator may return one of its inputs, and the routine may have another handle on that input.
    const auto* operand = std::find(operands, operands + values.size(), value);
    if (operand != operands + values.size()) {
      const size_t position = values.position(operand - operands);
      if (bridge.is_operand(values.call(), position, value))
        return values.set_result(i, values.call().get(Side::kInputs, position));
    }
    try {
      bridge.from_python(values.call(), Side::kOutputs, i, value,
                         [&](Value converted) { values.set_result(i, converted); });
    } catch (const ConversionError& reason) {
      values.fail(fmt::format("result {}: {}", i, reason.what()));
    }
  };
  const bool gradients = values.call().phase() == Phase::kBackward;  // None stands for an undefined gradient
  if (expected == 1) {
    if (result == Py_None && !gradients && !bridge.is_result(values.call(), 0, result))
      values.fail("it returned None; a replacement returns the operator's result");
    const bool in_a_tuple = PyTuple_Check(result) && length(result) == 1;
    return put(0, in_a_tuple && !bridge.is_list(values.call(), Side::kOutputs, 0) ? item(result, 0) : result);
  }
  if (expected == 0 && result == Py_None) return;
  if (!is_sequence(result) || static_cast<size_t>(length(result)) != expected) {
    values.fail(fmt::format("it returned {} where the operator has {} results; return a tuple of them",
                            is_sequence(result) ? fmt::format("{} values", length(result)) : "one value", expected));
  }
  for (size_t i = 0; i < expected; ++i) put(i, item(result, i));
}

}  // namespace amanda::python
