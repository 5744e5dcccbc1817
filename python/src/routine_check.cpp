#include "routine_check.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace amanda::python {
namespace {

constexpr size_t kMostRight = 4096;

// All are kept for the life of the process.
PyRef& check_in_python() {
  static auto* held = new PyRef;
  return *held;
}
PyRef& looks_in_python() {
  static auto* held = new PyRef;
  return *held;
}
// The questions with the answer 'right', each with the routine's code, whose address is part of the question.
std::unordered_map<std::string, PyRef>& right() {
  static auto* held = new std::unordered_map<std::string, PyRef>;
  return *held;
}

// All that the answer depends on, as bytes.
class Question {
 public:
  Question(const ContextHandle& context, const ScheduleCall& call) {
    PyObject* function = call.fn.ptr();
    const bool bound = PyMethod_Check(function);
    if (bound) function = PyMethod_GET_FUNCTION(function);
    if (!PyFunction_Check(function)) return;
    // It may have a __signature__.
    PyObject* attributes = reinterpret_cast<PyFunctionObject*>(function)->func_dict;
    if (attributes && PyDict_GET_SIZE(attributes) > 0) return;
    code_ = py::reinterpret_borrow<py::object>(PyFunction_GET_CODE(function));
    PyObject* defaults = PyFunction_GET_DEFAULTS(function);
    add(call.method);
    add(reinterpret_cast<uintptr_t>(code_.ptr()));
    add(static_cast<uintptr_t>(bound) << 1 | static_cast<uintptr_t>(call.with_run));
    add(static_cast<uintptr_t>(defaults ? PyTuple_GET_SIZE(defaults) : 0));
    add_names(PyFunction_GET_KW_DEFAULTS(function));
    add_names(call.kwargs.ptr());
    const bool counted = add_selection(call.positions) & add_selection(call.shown);
    // The meaning of names, and of numbers next to names, depends on the operator.
    if (!counted) add(reinterpret_cast<uintptr_t>(&context.get()->op()));
  }

  explicit operator bool() const { return static_cast<bool>(code_); }  // false if the answer may depend on more
  const std::string& text() const { return text_; }
  PyRef code() const { return PyRef(Py_NewRef(code_.ptr())); }

 private:
  void add(std::string_view part) {
    add(part.size());
    text_ += part;
  }
  void add(const char* part) { add(std::string_view(part)); }
  void add(uintptr_t number) { text_.append(reinterpret_cast<const char*>(&number), sizeof(number)); }

  void add_names(PyObject* dict) {
    add(static_cast<uintptr_t>(dict ? PyDict_GET_SIZE(dict) : 0));
    PyObject* name = nullptr;
    Py_ssize_t at = 0;
    while (dict && PyDict_Next(dict, &at, &name, nullptr)) add(text_of(name));
  }

  // Only the count of different numbers matters. Returns whether the answer depends on no operator's names, as it does
  // for None, which is all operands.
  bool add_selection(const py::object& selected) {
    if (selected.is_none()) {
      add("*");
      return false;
    }
    const auto items = py::reinterpret_steal<py::object>(PySequence_Fast(selected.ptr(), "no list"));
    if (!items) throw py::error_already_set();
    std::vector<long long> numbers;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(items.ptr(), i);
      int overflow = 0;
      const long long number = PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : -1;
      if (number < 0 || std::ranges::find(numbers, number) != numbers.end()) break;
      numbers.push_back(number);
    }
    add(static_cast<uintptr_t>(count));
    if (numbers.size() == static_cast<size_t>(count)) return true;
    for (Py_ssize_t i = 0; i < count; ++i) add(text_of(py::repr(PySequence_Fast_GET_ITEM(items.ptr(), i))));
    return false;
  }

  py::object code_;
  std::string text_;
};

}  // namespace

Action checked(const ContextHandle& context, const ScheduleCall& call, Action action) {
  try {
    const Question question(context, call);
    if (question && right().contains(question.text())) return action;
    const py::object self = py::cast(&context, py::return_value_policy::reference);
    py::handle(check_in_python().get())(self, call.method, call.fn, call.positions, call.with_run, call.kwargs,
                                        call.shown);
    if (!question) return action;
    std::unordered_map<std::string, PyRef> dropped;  // at the end: that may run code of the program
    if (right().size() >= kMostRight) dropped.swap(right());
    right().try_emplace(question.text(), question.code());
  } catch (...) {
    action.remove();
    throw;
  }
  return action;
}

bool only_looks(const py::object& fn) { return py::handle(looks_in_python().get())(fn).cast<bool>(); }

void bind_routine_check(py::module_& m) {
  m.def(
      "set_routine_checks",
      [](py::object check, py::object only_looks) {
        check_in_python() = PyRef(check.release().ptr());
        looks_in_python() = PyRef(only_looks.release().ptr());
      },
      py::arg("check"), py::arg("only_looks"),
      "`check(handle, method, fn, positions, with_run, kwargs, shown)` raises if a routine can't take what it will be "
      "given. `only_looks(fn)`: does it return nothing?");
}

}  // namespace amanda::python
