// amanda._torch: the PyTorch driver in Python. Importing it attaches the driver.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/version.h>

#include <optional>

#include "amanda/error.h"
#include "amanda/torch.h"
#include "backward/python_function.h"
#include "base/python_hooks.h"
#include "coverage/coverage_counter.h"
#include "coverage/python_threads.h"
#include "dispatch/place_table.h"
#include "dispatch/registered_operators.h"
#include "dispatch/registration.h"
#include "dispatch/typed_kernels.h"
#include "python/bridge.h"
#include "python/errors.h"
#include "python/framework_probe.h"
#include "python/identity/bindings.h"
#include "python/identity/call_path.h"
#include "python/identity/numbers.h"
#include "python/identity/place_rules.h"
#include "python/recording.h"
#include "thread/engine_threads.h"
#include "thread/keys.h"
#include "torch_backend.h"

namespace {

namespace pytorch = amanda::pytorch;
namespace python = amanda::python;

PyObject* error_class = nullptr;  // amanda.Error

// Called while amanda::Error propagates to PyTorch's Python bindings, which only handle Python's exceptions.
void rethrow_as_python() {
  if (!Py_IsInitialized()) return;
  try {
    throw;
  } catch (const amanda::Error& e) {
    py::gil_scoped_acquire gil;
    PyErr_SetString(error_class, e.what());
    python_error error;
    error.persist();
    throw error;
  }
}

PyObject* unwrap_function = nullptr;  // torch.func's, for its wrappers

at::Tensor unwrapped(const at::Tensor& wrapper) {
  py::gil_scoped_acquire gil;
  return py::handle(unwrap_function)(wrapper).cast<at::Tensor>();
}

void bind_function(const std::string& name, const pytorch::NodeWindow& window, const py::tuple& inputs,
                   const py::object& results) {
  std::vector<c10::IValue> operands;
  for (py::handle input : inputs) {
    operands.push_back(THPVariable_Check(input.ptr()) ? c10::IValue(THPVariable_Unpack(input.ptr())) : c10::IValue());
  }
  std::vector<at::Tensor> tensors;
  auto add = [&](py::handle result) {
    if (THPVariable_Check(result.ptr())) tensors.push_back(THPVariable_Unpack(result.ptr()));
  };
  if (py::isinstance<py::tuple>(results)) {
    for (py::handle result : results) add(result);
  } else {
    add(results);
  }
  py::gil_scoped_release no_gil;
  pytorch::bind_python_function(name, window, operands, tensors);
}

std::shared_ptr<pytorch::CoverageCounter> make_coverage_counter(const std::vector<uintptr_t>& tools) {
  amanda::Engine::Tools pointers;
  for (uintptr_t tool : tools) pointers.push_back(reinterpret_cast<const amanda::Tool*>(tool));
  return std::make_shared<pytorch::CoverageCounter>(std::move(pointers));
}

py::list rows_of(const pytorch::CoverageCounter& counter) {
  py::list rows;
  for (const pytorch::CoverageCounter::Row& row : counter.rows()) {
    py::dict skipped;
    for (size_t i = 0; i < pytorch::kSkips; ++i) {
      if (row.counts.skipped[i]) skipped[pytorch::kSkipNames[i]] = row.counts.skipped[i];
    }
    rows.append(py::make_tuple(row.name, row.backward, row.counts.seen, skipped));
  }
  return rows;
}

void bind_installation(py::module_& m) {
  m.def(
      "install",
      [](const py::object& error, const py::object& name_parameter, const py::object& recomputing,
         const py::object& engine, const py::object& unwrap, const py::object& set_compiler) {
        pytorch::attach();
        unwrap_function = Py_NewRef(unwrap.ptr());
        pytorch::python_hooks.unwrapped = &unwrapped;
        error_class = Py_NewRef(error.ptr());
        pytorch::python_hooks.rethrow = &rethrow_as_python;
        python::install_numbers(python::rules().parameter_class.ptr());
        python::install_call_path(name_parameter.ptr(), recomputing.ptr(), engine.ptr(), set_compiler.ptr());
      },
      py::arg("error"), py::arg("name_parameter"), py::arg("recomputing"), py::arg("engine"), py::arg("unwrap"),
      py::arg("set_compiler"), "Connects the driver with Python; called once, by the package.");
  m.def(
      "install_errors",
      [](const py::object& is_programs, const py::object& methods) {
        python::install_errors(is_programs.ptr(), methods.ptr());
      },
      py::arg("is_programs"), py::arg("methods"), "Tells exceptions of the program from those of tools; called once.");
}

void bind_operators(py::module_& m) {
  m.def(
      "built_for", [] { return TORCH_VERSION; }, "The version of PyTorch that this was compiled with.");
  m.def(
      "undeclared_writes",
      [] {
        py::set names;
        for (const auto& [op, arguments] : pytorch::undeclared_writes()) {
          for (std::string_view argument : arguments) names.add(py::make_tuple(std::string(op), std::string(argument)));
        }
        return names;
      },
      "(operator, argument): what operators write to though their schemas call it read-only.");
  m.def(
      "is_registered", [](const std::string& name) { return !pytorch::registered_operators().matching(name).empty(); },
      py::arg("name"), "Is an operator of this name, without wildcards, registered with the dispatcher?");
  m.def("typed_kernels", &pytorch::count_typed_kernels, "Operators that come in with their C++ operands.");
  m.def("caught_types", &pytorch::count_promoted, "Operators that filtered scopes have asked for in this process.");
}

void bind_functions(py::module_& m) {
  py::class_<pytorch::NodeWindow>(m, "NodeWindow", "The autograd nodes that this thread makes from now on.")
      .def(py::init<>());
  m.def("bind_function", &bind_function, py::arg("name"), py::arg("window"), py::arg("inputs"), py::arg("results"),
        "Tells what a torch.autograd.Function of that name has recorded in the window.");
}

/// `with` for OwnWork. On one thread.
struct OwnWorkBlock {
  std::optional<pytorch::OwnWork> entered;
};

void bind_coverage_counter(py::module_& m) {
  py::class_<OwnWorkBlock>(m, "OwnWork", "`with` it: calls on this thread are a tool's own, and not the program's.")
      .def(py::init<>())
      .def("__enter__", [](OwnWorkBlock& block) { block.entered.emplace(); })
      .def("__exit__", [](OwnWorkBlock& block, const py::args&) { block.entered.reset(); });
  pytorch::is_python_thread = [] { return PyGILState_GetThisThreadState() != nullptr; };
  py::class_<pytorch::CoverageCounter, std::shared_ptr<pytorch::CoverageCounter>>(
      m, "CoverageCounter", "What PyTorch was asked for while it was open, and whether tools were shown it.")
      .def(py::init(&make_coverage_counter), py::arg("tools"), "`tools`: as amanda._core.Scope.tools() has them.")
      .def("open", &pytorch::CoverageCounter::open, "Counts on this thread, until as many calls of close().")
      .def("close", &pytorch::CoverageCounter::close)
      .def("rows", &rows_of, "Tuples: operator or node, is it a node, times seen, times skipped by reason.");
  m.def(
      "skip_reasons", [] { return std::vector<std::string>(pytorch::kSkipNames.begin(), pytorch::kSkipNames.end()); },
      "Why a call may be skipped; each has its sentence in amanda.core.coverage.reasons.");
  m.def(
      "record_callbacks",
      [] { return at::get_record_function_tls_().sorted_tls_callbacks_.size() + (at::hasGlobalCallbacks() ? 1 : 0); },
      "For tests: callbacks of RecordFunction on this thread, and one more if all threads have some.");
}

void bind_threads(py::module_& m) {
  m.def(
      "dispatch_keys",
      [] { return py::make_tuple(c10::toString(pytorch::keys().filter), c10::toString(pytorch::keys().all)); },
      "The names of the dispatch keys in use: filter, all.");
  m.def("use_known_places", &pytorch::use_known_places, py::arg("on"),
        "For tests: with False, every call takes the slow path, on all threads.");
  m.def("count_known_places", &pytorch::count_known_places, "How many places this thread knows.");
  m.def(
      "restore_keys", [] { pytorch::thread_keys().restore(); }, "Puts this thread's dispatch keys right again.");
  m.def(
      "key_role", [] { return static_cast<int>(pytorch::key_role_here()); },
      "Which of dispatch_keys() this thread includes: 0 if none, 1 for filter, 2 for all.");
  m.def(
      "exchange_key_role",
      [](int role) {
        const auto before = static_cast<int>(pytorch::key_role_here());
        pytorch::include_keys(static_cast<pytorch::KeyRole>(role));
        return before;
      },
      py::arg("role"), "Includes what key_role() returned, and returns what was included before.");
  m.def("catch_operators", &pytorch::catch_operators, py::arg("on"),
        "Has operators on this thread caught for its scopes, or not; returns whether they were.");
  m.def(
      "has_scopes", [] { return pytorch::thread_keys().scopes != nullptr; }, "Are scopes open on this thread?");
  m.def(
      "sees_nothing", [] { return pytorch::thread_keys().unobserved != 0; },
      "Does this thread run code of a tool, or a compiled function, whose operators no tool is shown?");
  m.def(
      "enter_compiled", [] { ++pytorch::thread_keys().unobserved; },
      "This thread runs a compiled function, out of the tools' sight, until as many calls of leave_compiled().");
  m.def("leave_compiled", [] { --pytorch::thread_keys().unobserved; });
  m.def(
      "enter_graph",
      [] {
        ++pytorch::thread_keys().unobserved;
        ++pytorch::thread_keys().uncounted;
      },
      "As enter_compiled(), for a graph that is instrumented; coverage counters do not count what it calls either.");
  m.def("leave_graph", [] {
    --pytorch::thread_keys().unobserved;
    --pytorch::thread_keys().uncounted;
  });
}

}  // namespace

PYBIND11_MODULE(_torch, m) {
  using namespace amanda;
  m.doc() = "The PyTorch driver. Use it through the package `amanda`.";
  static python::TorchBridge bridge;
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& e) {
      PyErr_SetString(error_class ? error_class : PyExc_ImportError, e.what());
    }
  });
  static python::BridgeCapsule capsule{&pytorch::backend(), &bridge};
  m.def(
      "bridge", [] { return py::capsule(&capsule, python::kBridgeCapsule); }, "For amanda._core.register_bridge.");
  m.def(
      "framework_probe", [] { return py::capsule(&python::torch_probe(), kFrameworkProbeCapsule); },
      "For profilers: what is allocated, which other profilers are on.");
  m.def(
      "record_calls",
      [](const py::object& see, const py::object& function, const py::tuple& args, const py::dict& kwargs) {
        return python::record_calls(bridge, see, function, args, kwargs);
      },
      py::arg("see"), py::arg("function"), py::arg("args"), py::arg("kwargs"),
      "Calls `function(*args, **kwargs)` on traced tensors. Before each outermost operator, calls `see(namespace, "
      "name, "
      "overload, inputs)`, and after it what that returned, unless None, with (outputs, result_is_view).");
  bind_installation(m);
  bind_operators(m);
  bind_functions(m);
  bind_coverage_counter(m);
  bind_threads(m);
  python::bind_identity(m);
}
