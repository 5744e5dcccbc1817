// OpContext in Python: the class itself is amanda/op_context.py; this is its handle on the C++ context.
#include "op_context.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include "native_routine.h"
#include "routine_check.h"

namespace amanda::python {
namespace {

PyRef& context_class() {
  static auto* held = new PyRef;
  return *held;
}

/// An operator type as a Python callable.
struct Operator {
  Backend* backend;
  OpType type;
  OpId id;
  const OpInfo* info;

  std::string qualified() const { return info->ns + "::" + info->name; }
};

Positions positions(const py::object& selected, const char* keyword) {
  if (selected.is_none()) return Positions::all();
  if (py::isinstance<py::str>(selected) || !py::isinstance<py::iterable>(selected)) {
    throw py::type_error(fmt::format("[context] {0}= takes a list of positions or names, such as {0}=[0]; got {1}",
                                     keyword, text_of(py::repr(selected))));
  }
  std::vector<std::variant<int64_t, std::string>> list;
  for (py::handle item : selected) {
    if (py::isinstance<py::int_>(item) && !PyBool_Check(item.ptr())) {
      int overflow = 0;
      const long long position = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
      if (overflow)
        throw py::value_error(fmt::format("[context] {}= has no position {}", keyword, text_of(py::str(item))));
      list.push_back(position);
    } else if (py::isinstance<py::str>(item)) {
      list.push_back(text_of(item));
    } else {
      throw py::type_error(
          fmt::format("[context] {}= takes positions (int) and names (str); got {}", keyword, text_of(py::repr(item))));
    }
  }
  return Positions(std::move(list));
}

// An iterator can be read only once: it is read here, into a list.
py::object listed(const py::object& selected) {
  if (!PyIter_Check(selected.ptr())) return selected;
  return py::list(selected);
}

bool is_native(const py::object& fn) { return py::isinstance<NativeRoutineObject>(fn); }

RoutinePtr routine(const char* method, const py::object& fn, const py::dict& kwargs, bool with_run,
                   const char* inputs_name = nullptr) {
  if (is_native(fn)) {
    return std::make_shared<NativeFirst>(fn.cast<NativeRoutineObject&>(), kwargs, with_run, inputs_name);
  }
  if (!PyCallable_Check(fn.ptr())) {
    throw py::type_error(fmt::format("[context] {} takes a routine to call; got {}", method, text_of(py::repr(fn))));
  }
  return std::make_shared<PyRoutine>(fn, kwargs, with_run, inputs_name);
}

// An empty selection is not handed over at all.
bool selects(const Positions& positions) { return !positions.selected() || !positions.selected()->empty(); }

py::tuple operands(OpContext& context, Side side) {
  PythonBridge& bridge = bridge_of(context.backend());
  const size_t count = side == Side::kOutputs ? context.num_outputs() : context.num_inputs();
  py::tuple all(count);
  for (size_t i = 0; i < count; ++i) {
    all[i] =
        py::reinterpret_steal<py::object>(context.is_forward() ? bridge.to_python(context.site(), side, i)
                                                               : bridge.forward_to_python(context.site(), side, i));
  }
  return all;
}

py::tuple gradients(OpContext& context, Side side) {
  PythonBridge& bridge = bridge_of(context.backend());
  const size_t count = side == Side::kOutputs ? context.num_grad_inputs() : context.num_grad_outputs();
  py::tuple all(count);
  for (size_t i = 0; i < count; ++i) {
    all[i] = py::reinterpret_steal<py::object>(bridge.to_python(context.site(), side, i));
  }
  return all;
}

// For each input a name or None; for a list of tensors, a tuple of them.
py::tuple parameter_names(const OpContext& context) {
  auto shown = [](const std::string& name) { return name.empty() ? py::object(py::none()) : py::str(name); };
  py::tuple all(context.num_inputs());
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<std::string> names = context.parameter_names(i);
    py::tuple members(names.size());
    for (size_t j = 0; j < names.size(); ++j) members[j] = shown(names[j]);
    all[i] = names.empty() ? shown(context.parameter_name(i)) : py::object(std::move(members));
  }
  return all;
}

}  // namespace

// Without a call of Python: the class has no __init__, and its __setattr__ refuses all.
PyContextFace::PyContextFace(OpContext& context) {
  static const py::object& attribute =
      *new py::object(py::reinterpret_steal<py::object>(PyUnicode_InternFromString("_handle")));
  static const py::tuple& nothing = *new py::tuple();
  auto* cls = reinterpret_cast<PyTypeObject*>(context_class().get());
  const auto handle = std::make_shared<ContextHandle>(ContextHandle{context.weak()});
  auto object = py::reinterpret_steal<py::object>(cls->tp_new(cls, nothing.ptr(), nullptr));
  if (!object || PyObject_GenericSetAttr(object.ptr(), attribute.ptr(), py::cast(handle).ptr()) < 0)
    throw py::error_already_set();
  object_ = PyRef(object.release().ptr());
}

std::unique_ptr<ContextFace> PyContextFace::copy_keys(OpContext& owner) const {
  py::gil_scoped_acquire gil;
  auto copy = std::make_unique<PyContextFace>(owner);
  if (PyDict_Update(copy->object(), object()) < 0) throw py::error_already_set();
  copy->shared_ = shared_;
  return copy;
}

int PyContextFace::traverse(visitproc visit, void* arg) const {
  Py_VISIT(object_.get());
  return 0;
}

ContextFaceSync::ContextFaceSync(OpContext& context)
    : context_(context), face_([&]() -> PyContextFace& {
        if (!context.face()) context.face() = std::make_unique<PyContextFace>(context);
        return static_cast<PyContextFace&>(*context.face());
      }()) {
  auto dict = py::reinterpret_borrow<py::dict>(face_.object());
  auto& shared = face_.shared_;
  for (const auto& [key, value] : context_.keys()) {
    auto known = shared.find(key);
    if (known != shared.end() && equal(known->second, value)) continue;
    const py::object name = decoded(key), object = to_python(value);
    if (!name || !object) continue;
    dict[name] = object;
    shared[key] = value;
  }
  for (auto it = shared.begin(); it != shared.end();) {
    if (context_.keys().contains(it->first)) {
      ++it;
      continue;
    }
    if (dict.contains(it->first)) PyDict_DelItemString(dict.ptr(), it->first.c_str());
    it = shared.erase(it);
  }
}

void ContextFaceSync::bring_back() {
  auto dict = py::reinterpret_borrow<py::dict>(face_.object());
  auto& shared = face_.shared_;
  for (auto it = shared.begin(); it != shared.end();) {
    if (dict.contains(it->first)) {
      ++it;
      continue;
    }
    context_.keys().erase(it->first);
    it = shared.erase(it);
  }
  for (auto [key, object] : dict) {
    if (!PyUnicode_CheckExact(key.ptr())) continue;
    const std::optional<std::string> name = encoded(key);
    if (!name) continue;
    std::any converted = from_python(object);
    if (!converted.has_value()) {
      if (shared.erase(*name)) context_.keys().erase(*name);
      continue;
    }
    shared[*name] = converted;
    context_.keys()[*name] = std::move(converted);
  }
}

void ContextFaceSync::bring_back_after_error() {
  const py::error_scope raised;  // restores the Python error
  try {
    bring_back();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("amanda: the keys of a context");
  }
}

namespace {

using ContextClass = py::class_<ContextHandle, std::shared_ptr<ContextHandle>>;

void bind_operator(py::module_& m) {
  py::class_<Operator> operator_class(m, "Operator",
                                      "An operator type. Calling it runs the original operator, uninstrumented.");
  // The instances have a __name__, as functions have; setattr would rename the class instead.
  py::object name_of =
      py::cpp_function([](const Operator& op) { return op.info->name; }, py::is_method(operator_class));
  py::object name = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyProperty_Type))(name_of);
  PyDict_SetItemString(reinterpret_cast<PyTypeObject*>(operator_class.ptr())->tp_dict, "__name__", name.ptr());
  PyType_Modified(reinterpret_cast<PyTypeObject*>(operator_class.ptr()));
  operator_class.def_property_readonly("name", &Operator::qualified, "With its namespace: aten::conv2d.")
      .def_property_readonly(
          "overload", [](const Operator& op) { return op.info->overload; },
          "The overload: \"Tensor\"; \"\" if it has no name.")
      .def_property_readonly(
          "schema", [](const Operator& op) { return op.info->schema; }, "The schema, as the framework prints it.")
      .def_property_readonly(
          "input_names", [](const Operator& op) { return op.info->inputs; }, "The names of the input positions.")
      .def("__call__",
           [](const Operator& op, const py::args& args, const py::kwargs& kwargs) {
             PythonBridge& bridge = bridge_of(*op.backend);
             PyObject* result = bridge.call(op.type, op.id, args.ptr(), kwargs.ptr());
             if (!result) throw py::error_already_set();
             return py::reinterpret_steal<py::object>(result);
           })
      .def("__eq__", [](const Operator& a, const Operator& b) { return a.info == b.info; })
      .def("__eq__",
           [](const Operator&, const py::object& other) {
             if (!py::isinstance<py::str>(other)) return false;
             throw py::type_error(fmt::format(
                 "[context] an operator is never equal to a text; compare its name: context.op.__name__ == {}",
                 text_of(py::repr(other))));
           })
      .def("__hash__", [](const Operator& op) { return std::hash<const OpInfo*>()(op.info); })
      .def("__repr__", [](const Operator& op) {
        return fmt::format("<amanda.Operator {}{}{}>", op.qualified(), op.info->overload.empty() ? "" : ".",
                           op.info->overload);
      });
}

void bind_identity(ContextClass& context) {
  context
      .def("op",
           [](const ContextHandle& h) {
             const std::shared_ptr<OpContext> held = h.get();
             const OpContext& context = *held;
             return Operator{&context.backend(), context.type(), context.op_id(), &context.op()};
           })
      .def("op_id", [](const ContextHandle& h) { return h.get()->op_id(); })
      .def("namespace", [](const ContextHandle& h) { return h.get()->name_space(); })
      .def("is_forward", [](const ContextHandle& h) { return h.get()->is_forward(); })
      .def("tool", [](const ContextHandle& h) { return owner_of(h.get()->tool()); })
      .def("module_path", [](const ContextHandle& h) { return h.get()->module_path(); })
      .def("source", [](const ContextHandle& h) { return h.get()->source(); })
      .def("is_recompute", [](const ContextHandle& h) { return h.get()->is_recompute(); })
      .def("is_symbolic", [](const ContextHandle& h) { return h.get()->is_symbolic(); })
      .def("actions", [](const ContextHandle& h) { return h.get()->actions(); })
      .def("depth", [](const ContextHandle& h) { return h.get()->depth(); })
      .def("where", [](const ContextHandle& h) { return h.get()->where(); })
      .def(
          "asks",
          [](const ContextHandle& h, const Tool& tool) {
            py::list asking;
            for (const Registration& registration : *tool.registrations()) {
              const InstOptions& options = registration.options;
              if (options.ops.is_on_demand() || options.ops.matches(h.get()->op()))
                asking.append(py::make_tuple(options.backward, options.require_outputs));
            }
            return asking;
          },
          py::arg("tool"), "Of each of its routines that ask for this operator: backward, require_outputs.")
      .def("backward_op",
           [](const ContextHandle& h) -> std::optional<Operator> {
             const std::shared_ptr<OpContext> held = h.get();
             const OpContext& context = *held;
             if (context.is_forward()) return std::nullopt;
             return Operator{&context.backend(), context.backward_type(), context.backward_op_id(),
                             context.backward_op()};
           })
      .def("backward_op_id", [](const ContextHandle& h) -> std::optional<OpId> {
        if (h.get()->is_forward()) return std::nullopt;
        return h.get()->backward_op_id();
      });
}

/// One of the context's sides, as its driver describes it; none where the phase has none.
std::vector<ValueInfo> infos(const ContextHandle& handle, const std::string& side) {
  const std::shared_ptr<OpContext> held = handle.get();
  const OpContext& context = *held;
  std::vector<ValueInfo> found;
  auto add = [&](size_t count, auto value_at) {
    for (size_t i = 0; i < count; ++i) found.push_back(context.backend().describe((context.*value_at)(i)));
  };
  if (side == "inputs") {
    add(context.num_inputs(), &OpContext::input);
  } else if (side == "outputs") {
    add(context.num_outputs(), &OpContext::output);
  } else if (side == "grad_outputs") {
    add(context.num_grad_outputs(), &OpContext::grad_output);
  } else {
    add(context.num_grad_inputs(), &OpContext::grad_input);
  }
  return found;
}

void bind_operands(ContextClass& context) {
  context.def("infos", &infos, py::arg("side"),
              "What the driver says of its inputs, outputs, grad_outputs, grad_inputs.");
  context.def("inputs", [](const ContextHandle& h) { return operands(*h.get(), Side::kInputs); })
      .def(
          "attribute", [](const ContextHandle& h, const std::string& name) { return h.get()->attribute(name); },
          py::arg("name"))
      .def("parameter_names", [](const ContextHandle& h) { return parameter_names(*h.get()); })
      .def("has_outputs", [](const ContextHandle& h) { return h.get()->has_outputs(); })
      .def("has_grad_inputs", [](const ContextHandle& h) { return h.get()->has_grad_inputs(); })
      .def("outputs",
           [](const ContextHandle& h) -> std::optional<py::tuple> {
             if (!h.get()->has_outputs()) return std::nullopt;
             return operands(*h.get(), Side::kOutputs);
           })
      .def("grad_outputs",
           [](const ContextHandle& h) -> std::optional<py::tuple> {
             if (h.get()->is_forward()) return std::nullopt;
             return gradients(*h.get(), Side::kInputs);
           })
      .def("grad_inputs", [](const ContextHandle& h) -> std::optional<py::tuple> {
        if (!h.get()->has_grad_inputs()) return std::nullopt;
        return gradients(*h.get(), Side::kOutputs);
      });
}

/// Options of a method, as Python gives them.
struct PyOptions {
  py::object gets, shown;  // positions and names, or None
  bool with_run, differentiable, allow_view, traceable;
};

/// A graph stays as it is around a routine that only looks, and can take in what a traceable one does. Eager calls find
/// out when it runs.
RoutineKind kind_of(const OpContext& context, const ScheduleMethod& method, const py::object& fn, bool traceable) {
  if (is_native(fn) && !fn.cast<const NativeRoutineObject&>().edits) return RoutineKind::kObserve;
  if (!context.backend().capabilities().symbolic_analysis) return RoutineKind::kUnknown;
  if (method.point != Point::kReplace && only_looks(fn)) return RoutineKind::kObserve;
  return traceable ? RoutineKind::kTraceable : RoutineKind::kUnknown;
}

Action schedule(const ContextHandle& handle, const char* name, const py::object& fn, const py::dict& kwargs,
                const PyOptions& given) {
  const ScheduleMethod& method = schedule_method(name);
  const std::shared_ptr<OpContext> context = handle.get();
  ActionOptions options;
  options.*method.gets.option = positions(given.gets, method.gets.name);
  const char* shown_as = nullptr;  // the keyword that the routine gets
  if (method.shown.name) {
    const Positions shown = positions(given.shown, method.shown.name);
    if (selects(shown)) shown_as = method.shown.name;
    options.*method.shown.option = shown;
  }
  options.differentiable = given.differentiable;
  options.allow_view = given.allow_view;
  options.kind = kind_of(*context, method, fn, given.traceable);
  return checked(handle, {method.name, fn, given.gets, given.with_run, kwargs, given.shown},
                 context->schedule(method, routine(method.name, fn, kwargs, given.with_run, shown_as), options));
}

void bind_actions(ContextClass& context) {
  context.def("may_mutate", [](const ContextHandle& h) { h.get()->may_mutate(); })
      .def(
          "schedule",
          [](const ContextHandle& h, const char* method, const py::object& fn, const py::dict& kwargs,
             const py::object& gets, const py::object& shown, bool with_run, bool differentiable, bool allow_view,
             bool traceable) {
            return schedule(h, method, fn, kwargs,
                            {listed(gets), listed(shown), with_run, differentiable, allow_view, traceable});
          },
          py::arg("method"), py::arg("fn"), py::arg("kwargs"), py::arg("gets"), py::arg("shown") = py::tuple(),
          py::arg("with_run") = false, py::arg("differentiable") = false, py::arg("allow_view") = false,
          py::arg("traceable") = false, "gets, shown: positions and names, or None: all.");
}

}  // namespace

void bind_op_context(py::module_& m) {
  bind_operator(m);
  py::class_<NativeRoutineObject>(m, "NativeRoutine", "A routine in C++, to be scheduled as a function is.")
      .def(py::init([](const py::capsule& capsule, py::object otherwise, bool edits) {
             const auto* native = static_cast<NativeRoutine*>(PyCapsule_GetPointer(capsule.ptr(), kRoutineCapsule));
             if (!native) throw py::error_already_set();
             return NativeRoutineObject{*native, std::move(otherwise), edits};
           }),
           py::arg("capsule"), py::arg("otherwise"), py::arg("edits") = false,
           "otherwise: what to call, with what was selected, in the runs in which the C++ routine declines. edits: it "
           "may replace what was selected; if not, it only looks.")
      .def("__call__", [](const NativeRoutineObject& routine, const py::args& args, const py::kwargs& kwargs) {
        return routine.otherwise(*args, **kwargs);
      });
  bind_routine_check(m);
  ContextClass context(m, "ContextHandle", "What amanda.OpContext asks; use that.");
  bind_identity(context);
  bind_operands(context);
  bind_actions(context);
  m.def(
      "set_context_class", [](py::object cls) { context_class() = PyRef(cls.release().ptr()); }, py::arg("cls"),
      "The class that contexts are shown as: a dict with a slot _handle for the ContextHandle.");
}

}  // namespace amanda::python
