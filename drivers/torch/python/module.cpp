// amanda._torch: the PyTorch driver in Python. Importing it attaches the driver.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/version.h>

#include <chrono>
#include <optional>

#include "amanda/error.h"
#include "amanda/torch.h"
#include "backward/python_function.h"
#include "base/hash.h"
#include "base/op_types.h"
#include "base/python_hooks.h"
#include "coverage/coverage_counter.h"
#include "coverage/python_threads.h"
#include "dispatch/place_table.h"
#include "dispatch/registered_operators.h"
#include "dispatch/registration.h"
#include "dispatch/typed_kernels.h"
#include "identity/identity.h"
#include "python/bridge.h"
#include "python/call_path.h"
#include "python/deaths.h"
#include "python/errors.h"
#include "python/framework_probe.h"
#include "python/model_names.h"
#include "python/model_parts.h"
#include "python/naming.h"
#include "python/numbers.h"
#include "python/operand_names.h"
#include "python/recording.h"
#include "python/spot.h"
#include "python/step_path.h"
#include "python/steps.h"
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

std::pair<int64_t, size_t> time_ids(const at::Tensor& x, const at::Tensor& weight, int64_t count) {
  using namespace amanda::pytorch;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "");
  const OpRecord& record = op_types().of(op);
  const OperandTensors arguments{{0, &x}, {1, &weight}};
  uint64_t sum = identify(record, arguments).id;  // a hit from here on
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i) sum += identify(record, arguments).id;
  const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - start;
  [[maybe_unused]] static volatile uint64_t used;
  used = sum;
  return {taken.count(), amanda::python::count_frames()};
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
      [](const py::object& error, const py::object& resolve, const py::object& name_parameter,
         const py::object& recomputing, const py::object& engine, const py::object& run_module,
         const py::object& parameter, const py::object& unwrap, const py::object& set_compiler) {
        pytorch::attach();
        unwrap_function = Py_NewRef(unwrap.ptr());
        pytorch::python_hooks.unwrapped = &unwrapped;
        error_class = Py_NewRef(error.ptr());
        pytorch::python_hooks.rethrow = &rethrow_as_python;
        python::install_numbers(parameter.ptr());
        python::install_call_path(resolve.ptr(), name_parameter.ptr(), recomputing.ptr(), engine.ptr(),
                                  run_module.ptr(), set_compiler.ptr());
      },
      py::arg("error"), py::arg("resolve"), py::arg("name_parameter"), py::arg("recomputing"), py::arg("engine"),
      py::arg("run_module"), py::arg("parameter"), py::arg("unwrap"), py::arg("set_compiler"),
      "Connects the driver with Python; called once, by the package.");
  m.def(
      "install_errors",
      [](const py::object& is_programs, const py::object& methods) {
        python::install_errors(is_programs.ptr(), methods.ptr());
      },
      py::arg("is_programs"), py::arg("methods"), "Tells exceptions of the program from those of tools; called once.");
}

void bind_operators(py::module_& m) {
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
      "Why a call may be skipped; each has its sentence in amanda.coverage.reasons.");
  m.def(
      "record_callbacks", [] { return at::get_record_function_tls_().sorted_tls_callbacks_.size(); },
      "For tests: callbacks of RecordFunction on this thread.");
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

void bind_numbers(py::module_& m) {
  m.def("number_of", &python::number_of, py::arg("tensor"), "A tensor's number, by which places are found; 0: none.");
  m.def("assign_number", &python::assign_number, py::arg("tensor"), py::arg("counts"),
        "Assigns a new number to a tensor and returns it; `counts`: as a parameter, whatever its type says.");
  m.def("clear_number", &python::clear_number, py::arg("number"),
        "Removes a number from its tensor, if that is alive.");
  m.def("exchange_numbers", &python::exchange_numbers, py::arg("a"), py::arg("b"),
        "After torch.utils.swap_tensors: the Python objects keep their numbers.");
  m.def("dead_numbers", &python::dead_numbers, "Numbers of tensors that died since the last call.");
}

py::tuple identify(const std::string& path, const py::list& modules, uint64_t name_hash, const py::sequence& tensors,
                   bool recomputing) {
  std::vector<PyObject*> running;
  for (py::handle module : modules) running.push_back(module.ptr());
  std::vector<python::NamedOperand> operands;
  for (py::handle each : tensors) {
    const auto [position, tensor, counts] = each.cast<std::tuple<size_t, py::object, bool>>();
    if (!tensor.is_none() && !THPVariable_Check(tensor.ptr())) throw py::type_error("no tensor");
    operands.push_back({position, tensor.is_none() ? nullptr : tensor.ptr(), counts});
  }
  const python::Identified found = python::identify(path, running, name_hash, operands, recomputing);
  return py::make_tuple(found.id, found.module_path);
}

void bind_naming(py::module_& m) {
  m.def("install_operand_names", &python::install_operand_names, py::arg("names"), py::arg("homes"), py::arg("search"),
        py::arg("watch_exchanges"), "What names of parameters and buffers are found with.");
  m.def("install_naming", &python::install_naming, py::arg("registered"), py::arg("lock"), py::arg("entered"),
        py::arg("blocks"), py::arg("hash"), "What places are named with.");
  m.def("identify", &identify, py::arg("path"), py::arg("modules"), py::arg("name_hash"), py::arg("tensors"),
        py::arg("recomputing"),
        "The id of an operator on a path, and the path of the innermost module. `tensors`: for each tensor operand: "
        "(position, tensor or None, does it count as a parameter by its type).");
  m.def("renumber_loose", &python::renumber_loose, py::arg("tensor"), "A parameter may have another name from now on.");
  m.def("forget_loose", &python::forget_loose, py::arg("number"), "The tensor with this number has died.");
  m.def("count_named_places", &python::count_named_places, "For tests: how many places were named, rather than found.");
}

void bind_models(py::module_& m) {
  m.def(
      "install_models",
      [](py::object module_class, py::object parameter_class, py::object name_class, py::object shape_of) {
        python::install_models(
            {std::move(module_class), std::move(parameter_class), std::move(name_class), std::move(shape_of)});
      },
      py::arg("module_class"), py::arg("parameter_class"), py::arg("name_class"), py::arg("shape_of"),
      "What models are registered with. `shape_of(parameter)`: where its class is another one.");
  m.def(
      "install_buffers",
      [](py::dict names, py::dict registered, py::dict homes, py::object buffers_class, py::object home_class,
         py::object settle) {
        python::install_buffers({std::move(names), std::move(registered), std::move(homes), std::move(buffers_class),
                                 std::move(home_class), std::move(settle)});
      },
      py::arg("names"), py::arg("registered"), py::arg("homes"), py::arg("buffers_class"), py::arg("home_class"),
      py::arg("settle"), "Where buffers are kept. `settle(module)`: of a module that is registered.");
  m.def("held", &python::held, py::arg("module"), py::arg("kind"),
        "Names and values of a module's own `_parameters`, `_buffers` or `_modules` that are not None.");
  m.def(
      "named_parts", &python::named_parts, py::arg("module"), py::arg("wrapper").none(true),
      "(name, module) of a module and all modules in it, each once. `wrapper`: the class of torch.compile's wrappers, "
      "which count as the module inside; None: there are none.");
  m.def("parameters_text", &python::parameters_text, py::arg("parts"),
        "The names and shapes of all parameters of named parts, as Python shows them.");
  m.def("with_state", &python::with_state, py::arg("parts"), py::arg("wrapper").none(true),
        "For each part one byte: does it hold parameters or buffers, or a module in it?");
  m.def("register_buffers", &python::register_buffers, py::arg("parts"),
        "Has the buffers of named parts count as parameters.");
}

void bind_model_names(py::module_& m) {
  m.def("name_parts", &python::name_parts, py::arg("parts"), py::arg("model"), py::arg("with_state"), py::arg("names"),
        py::arg("is_plain"),
        "Watches all parts of a model and names them. `names`: where they are called directly, by address. Returns the "
        "addresses of those that have no name any more.");
  m.def(
      "running_modules",
      [] {
        py::list modules;
        for (PyObject* module : python::running_modules()) modules.append(py::handle(module));
        return modules;
      },
      "What this thread's frames of nn.Module's __call__ run, innermost first.");
  m.def("next_to_name", &python::next_to_name, py::arg("running"),
        "The outermost module of a model that is to be named before the running modules, innermost first, have names; "
        "None: all have.");
  m.def("name_among", &python::name_among, py::arg("running"), py::arg("module"),
        "The name of a module in the outermost of the running modules that holds it, or None.");
  m.def("home_name", &python::home_name, py::arg("module"),
        "The name that a module has where it is called directly, or None.");
  m.def("forget_model", &python::forget_model, py::arg("address"), "The object at this address has died.");
}

void bind_places(py::module_& m) {
  m.def(
      "watch",
      [](const py::object& thing, bool plain) {
        return python::watch(thing.ptr(), plain ? python::Watch::kPlain : python::Watch::kAddress);
      },
      py::arg("thing"), py::arg("plain") = false,
      "Starts a new epoch when the thing dies; `plain`: it is a module without state or parts, which does not. Returns "
      "whether it can be watched.");
  m.def("dead_objects", &python::dead_objects, "Addresses of watched things that died since the last call.");
  py::class_<python::Spot, std::shared_ptr<python::Spot>>(m, "Spot", "An instruction that a frame is at.")
      .def(py::init([](const py::object& code, int offset, const py::object& python_module) {
             if (!PyCode_Check(code.ptr())) throw py::type_error("[identity] a Spot is made of a code object");
             auto* found = reinterpret_cast<PyCodeObject*>(code.ptr());
             return std::make_shared<python::Spot>(std::make_shared<python::SpotCode>(found, python_module), found,
                                                   offset);
           }),
           py::arg("code"), py::arg("offset"), py::arg("python_module"))
      .def_property_readonly("lends", &python::Spot::lends, "Does it call a module with other tensors than its own?");
  m.def(
      "install_spots",
      [](std::string torch_folder, std::string checkpoint_file, py::object functional_call, py::function is_machinery,
         py::function file_of, py::function position_of, py::function line_of, py::function name_of_module) {
        python::install_spots({std::move(torch_folder), std::move(checkpoint_file), std::move(functional_call),
                               std::move(is_machinery), std::move(file_of), std::move(position_of), std::move(line_of),
                               std::move(name_of_module)});
      },
      py::arg("torch_folder"), py::arg("checkpoint_file"), py::arg("functional_call"), py::arg("is_machinery"),
      py::arg("file_of"), py::arg("position_of"), py::arg("line_of"), py::arg("name_of_module"),
      "What spots are made with.");
  m.def(
      "install_steps",
      [](py::object run_module, py::object step, py::dict names, py::function unwrapped, py::function is_resumed,
         py::function mark_of_function) {
        python::install_steps({std::move(run_module), std::move(step), std::move(names), std::move(unwrapped),
                               std::move(is_resumed), std::move(mark_of_function)});
      },
      py::arg("run_module"), py::arg("step"), py::arg("names"), py::arg("unwrapped"), py::arg("is_resumed"),
      py::arg("mark_of_function"),
      "What steps are made with. `run_module`: the code whose first local is a module; `step`: the class of steps, a "
      "tuple; `names`: of known modules, by address; `unwrapped(module)`: what counts as running instead of an unknown "
      "one; `is_resumed(code)`: no step of it is kept.");
  m.def("count_steps", &python::count_steps, "For tests: how many steps were made, rather than found.");
  m.def("steps_from", &python::steps_from, py::arg("frame"), py::arg("addresses"),
        "The steps of a frame and its callers, and (index, frame) of those at one of the addresses; None, if a step "
        "cannot be kept.");
  m.def("modules_of", &python::modules_of, py::arg("steps"), "The modules that the steps run, innermost first.");
  m.def("path_of", &python::path_of, py::arg("steps"),
        "The places of the steps up to their root, as the text of a tuple, the source line, and whether steps outside "
        "the outermost module do not change them. The modules have names.");
  m.def("forget_steps", &python::forget_steps, py::arg("code"), "The code object at this address has died.");
  m.def("set_block", &python::set_block, py::arg("frame"), py::arg("tag"),
        "What `with amanda.root(name)` the frame at this address is in; 0: none.");
  m.def(
      "raw_place",
      [](const py::handle& args, const py::tuple& positions) {
        const pytorch::PythonHooks& hooks = pytorch::python_hooks;
        const auto raw_path = hooks.raw_path.load(std::memory_order_relaxed);
        uint64_t hash = raw_path ? raw_path(pytorch::thread_keys().walk) : 0;
        if (!PyTuple_Check(args.ptr()) && !PyList_Check(args.ptr())) throw py::type_error("no tuple or list");
        for (const py::handle& position : positions) {
          const py::ssize_t i = PyLong_AsSsize_t(position.ptr());
          if (i < 0 || i >= PySequence_Fast_GET_SIZE(args.ptr())) throw py::index_error("a position is out of range");
          hash = pytorch::mix(hash, reinterpret_cast<uint64_t>(PySequence_Fast_GET_ITEM(args.ptr(), i)));
        }
        return py::make_tuple(hooks.epoch.load(std::memory_order_acquire), hash);
      },
      py::arg("args"), py::arg("positions"),
      "The epoch, and a hash that holds in it: of this thread's Python frames, and of which objects are in these "
      "positions.");
  m.def(
      "name_hash",
      [](const char* name, const char* overload) {
        return pytorch::op_types().of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)).name_hash;
      },
      py::arg("name"), py::arg("overload"), "What an operator's name counts as in ids.");
  m.def("start_new_epoch", &python::start_new_epoch, "What ids were found by has changed.");
  m.def(
      "built_for", [] { return TORCH_VERSION; }, "The version of PyTorch that this was compiled with.");
  m.def("walks_frames_directly", &python::walks_frames_directly, "Is the fast walk over Python frames in use?");
  m.def("walk_frames_directly", &python::walk_frames_directly, py::arg("on"),
        "For tests: ids are the same either way.");
  m.def("time_ids", &time_ids, py::arg("x"), py::arg("weight"), py::arg("count"),
        "For benchmarks: nanoseconds for `count` ids of aten::linear(x, weight), and the number of Python frames.");
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
  bind_numbers(m);
  bind_naming(m);
  bind_models(m);
  bind_model_names(m);
  bind_places(m);
}
