#include "python/identity/bindings.h"

#include <torch/csrc/autograd/python_variable.h>

#include <chrono>

#include "base/hash.h"
#include "base/op_types.h"
#include "base/python_hooks.h"
#include "identity/identity.h"
#include "python/identity/call_path.h"
#include "python/identity/deaths.h"
#include "python/identity/model_names.h"
#include "python/identity/model_parts.h"
#include "python/identity/naming.h"
#include "python/identity/numbers.h"
#include "python/identity/operand_names.h"
#include "python/identity/place_rules.h"
#include "python/identity/spot.h"
#include "python/identity/step_path.h"
#include "python/identity/steps.h"
#include "thread/keys.h"

namespace amanda::python {
namespace {

namespace pytorch = amanda::pytorch;
namespace python = amanda::python;

std::pair<int64_t, size_t> time_ids(const at::Tensor& x, const at::Tensor& weight, int64_t count) {
  using namespace pytorch;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "");
  const OpRecord& record = op_types().of(op);
  const OperandTensors arguments{{0, &x}, {1, &weight}};
  uint64_t sum = pytorch::identify(record, arguments).id;  // a hit from here on
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i) sum += pytorch::identify(record, arguments).id;
  const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - start;
  [[maybe_unused]] static volatile uint64_t used;
  used = sum;
  return {taken.count(), count_frames()};
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

py::tuple identify_path(const std::string& path, const py::list& modules, const std::pair<std::string, size_t>& traced,
                        uint64_t name_hash, const py::sequence& tensors, bool recomputing) {
  std::vector<PyObject*> running;
  for (py::handle module : modules) running.push_back(module.ptr());
  std::vector<python::NamedOperand> operands;
  for (py::handle each : tensors) {
    const auto [position, tensor, counts] = each.cast<std::tuple<size_t, py::object, bool>>();
    if (!tensor.is_none() && !THPVariable_Check(tensor.ptr())) throw py::type_error("no tensor");
    operands.push_back({position, tensor.is_none() ? nullptr : tensor.ptr(), counts});
  }
  const python::Identified found =
      python::identify(path, running, {traced.first, traced.second}, name_hash, operands, recomputing);
  return py::make_tuple(found.id, found.module_path);
}

void bind_naming(py::module_& m) {
  m.def("install_rules", &python::install_rules, py::arg("rules"),
        "Installs the rules by which places are named, a PlaceRules. Called once, by the package.");
  m.def("identify", &identify_path, py::arg("path"), py::arg("modules"), py::arg("traced"), py::arg("name_hash"),
        py::arg("tensors"), py::arg("recomputing"),
        "The id of an operator on a path, and the path of its module: `traced` is its name in a running module, and "
        "the number of that one, innermost first. `tensors`: for "
        "each tensor operand: "
        "(position, tensor or None, does it count as a parameter by its type).");
  m.def("renumber_loose", &python::renumber_loose, py::arg("tensor"), "A parameter may have another name from now on.");
  m.def("forget_loose", &python::forget_loose, py::arg("number"), "The tensor with this number has died.");
  m.def("count_named_places", &python::count_named_places, "For tests: how many places were named, rather than found.");
}

void bind_models(py::module_& m) {
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
      .def(py::init(
               [](const py::object& code, int offset, const py::object& python_module, const py::object& graph_module) {
                 if (!PyCode_Check(code.ptr())) throw py::type_error("[identity] a Spot is made of a code object");
                 auto* found = reinterpret_cast<PyCodeObject*>(code.ptr());
                 return std::make_shared<python::Spot>(std::make_shared<python::SpotCode>(found, python_module), found,
                                                       offset, graph_module);
               }),
           py::arg("code"), py::arg("offset"), py::arg("python_module"), py::arg("graph_module") = py::none())
      .def_property_readonly("lends", &python::Spot::lends, "Does it call a module with other tensors than its own?");
  m.def("count_steps", &python::count_steps, "For tests: how many steps were made, rather than found.");
  m.def("steps_from", &python::steps_from, py::arg("frame"),
        "The steps of a frame (or None) and its callers, innermost first.");
  m.def("modules_of", &python::modules_of, py::arg("steps"), "The modules that the steps run, innermost first.");
  m.def("path_of", py::overload_cast<const py::list&>(&python::path_of), py::arg("steps"),
        "The places of the steps up to their root, as the text of a tuple; the source line; what identify() calls "
        "`traced`; "
        "and whether steps outside the outermost module do not change the places. The modules have names.");
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
  m.def("walks_frames_directly", &python::walks_frames_directly, "Is the fast walk over Python frames in use?");
  m.def("walk_frames_directly", &python::walk_frames_directly, py::arg("on"),
        "For tests: ids are the same either way.");
  m.def("time_ids", &time_ids, py::arg("x"), py::arg("weight"), py::arg("count"),
        "For benchmarks: nanoseconds for `count` ids of aten::linear(x, weight), and the number of Python frames.");
}

}  // namespace

void bind_identity(py::module_& m) {
  bind_numbers(m);
  bind_naming(m);
  bind_models(m);
  bind_model_names(m);
  bind_places(m);
}

}  // namespace amanda::python
