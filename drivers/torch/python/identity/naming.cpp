#include "python/identity/naming.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "amanda/base/no_copy.h"
#include "base/stack_value.h"
#include "python/identity/deaths.h"
#include "python/identity/model_names.h"
#include "python/identity/numbers.h"
#include "python/identity/path.h"
#include "python/identity/place_rules.h"
#include "python/identity/step_path.h"
#include "python/identity/steps.h"
#include "python/identity/text.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

/// The lock of naming: call_path.naming() takes it, too.
class NamingLock : NoCopy {
 public:
  explicit NamingLock(bool wait) : held_(py::bool_(rules().acquire(wait))) {}
  ~NamingLock() {
    if (!held_) return;
    const auto done = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(rules().release.ptr()));
    if (!done) PyErr_Clear();
  }
  explicit operator bool() const { return held_; }

 private:
  bool held_;
};

/// Operators that Python's code calls meanwhile are not recorded, and no mode sees them: see call_path.naming().
class Unseen : NoCopy {
 public:
  Unseen()
      : functions_(at::impl::PythonTorchFunctionTLS::get_disabled_state()),
        trace_(torch::jit::tracer::getTracingState()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
    if (trace_) torch::jit::tracer::setTracingState(nullptr);
  }
  ~Unseen() {
    if (trace_) torch::jit::tracer::setTracingState(trace_);
    at::impl::PythonTorchFunctionTLS::set_disabled_state(functions_);
  }

 private:
  const at::impl::TorchFunctionDisabledState functions_;
  const std::shared_ptr<torch::jit::tracer::TracingState> trace_;
};

// The same as frames.hash_of_text().
uint64_t hash_of(const std::string& text) {
  static PyObject* const digest = PyUnicode_InternFromString("digest");
  const py::bytes data(text);
  const auto hash = py::reinterpret_steal<py::object>(PyObject_CallOneArg(rules().hash.ptr(), data.ptr()));
  if (!hash) throw py::error_already_set();
  const auto bytes = py::reinterpret_steal<py::bytes>(PyObject_CallMethodNoArgs(hash.ptr(), digest));
  if (!bytes) throw py::error_already_set();
  uint64_t number = 0;
  for (const char byte : std::string_view(bytes)) number = number >> 8 | uint64_t{static_cast<uint8_t>(byte)} << 56;
  return number;  // little-endian
}

bool is_registered(PyObject* module) {
  const auto address = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(module));
  return PyDict_GetItemWithError(rules().registered.ptr(), address.ptr()) != nullptr;
}

// The frames that entered a scope. They count only where no model is around the call.
class Entered {
 public:
  // Returns false if a frame is in a block, whose name counts.
  bool ask() {
    if (py::len(rules().blocks) > 0) return false;
    frames_ = rules().entered();
    return true;
  }
  bool has(const KeptStep& step) const {
    if (!frames_ || !step.frame) return false;
    const auto address = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(step.frame));
    return PyDict_GetItemWithError(frames_.ptr(), address.ptr()) == step.code;
  }

 private:
  py::object frames_;
};

struct Call {
  Path path;
  std::vector<PyObject*> modules;
  ModuleNames names;  // of these
};

// Returns false if something is not kept.
bool add_all(Call& call, const Entered& entered) {
  const c10::SmallVector<KeptStep, 64> steps =
      kept_steps();  // from here on, no Python code runs that could change the kept steps
  for (const KeptStep& step : steps) {
    if (!step.module || step.module == Py_None) continue;
    if (!is_registered(step.module)) return false;
    call.modules.push_back(step.module);
  }
  call.names = names_now(call.modules);
  if (call.names.size() < call.modules.size()) return false;
  auto name = call.names.begin();
  for (const KeptStep& step : steps) {
    PathStep part = step.known->part();
    part.enters = entered.has(step);
    if (step.module && step.module != Py_None) part.run(*name++);
    if (part.has_text() && part.text.empty()) return false;
    call.path.add(part);
  }
  return !steps.empty();
}

std::optional<Call> call_here() {
  Entered entered;
  Call call;
  if (runs_module()) {
    if (!add_all(call, entered)) return std::nullopt;
    if (call.path.has_root()) return call;
    call = {};
  }
  if (!entered.ask() || !add_all(call, entered)) return std::nullopt;
  return call;
}

// The hash of an operator on a path, which `append_path` appends. Texts of paths are long: all are made in one string.
template <class Append>
uint64_t hash_of_place(uint64_t name_hash, const Append& append_path) {
  static auto& text = *new std::string;
  text = "(";
  text += std::to_string(name_hash);
  text += ", ";
  append_path(text);
  text += ')';
  return hash_of(text);
}

Identified identify_at(uint64_t place, const std::vector<PyObject*>& modules, const ModuleNames& names,
                       const TracedModule& traced, const std::vector<NamedOperand>& operands, bool recomputing) {
  std::string named = "(" + std::to_string(place) + ", [";
  bool is_first = true;
  for (const NamedOperand& operand : operands) {
    const std::string name = operand_name(operand, modules, names, place, recomputing);
    if (name.empty()) continue;
    named += std::exchange(is_first, false) ? "(" : ", (";
    named += std::to_string(operand.position) + ", " + name + ")";
  }
  const uint64_t id = hash_of(named + "])");
  Identified found{.id = id ? id : 1, .module_path = {}, .source = {}};
  if (traced.running < names.size()) found.module_path = encodable(names[traced.running].path());
  if (!found.module_path.empty() && !traced.name.empty()) found.module_path += '.';
  found.module_path += traced.name;
  return found;
}

}  // namespace

Identified identify(std::string_view path, const std::vector<PyObject*>& modules, const TracedModule& traced,
                    uint64_t name_hash, const std::vector<NamedOperand>& operands, bool recomputing) {
  const uint64_t place = hash_of_place(name_hash, [&](std::string& text) { text += path; });
  return identify_at(place, modules, names_given(modules), traced, operands, recomputing);
}

namespace {

std::vector<NamedOperand> named(const std::vector<pytorch::TensorOperand>& tensors) {
  std::vector<NamedOperand> operands;
  for (const auto& [position, tensor, counts] : tensors) {
    PyObject* object = pytorch::py_object(*tensor);
    if (object || counts) operands.push_back({position, object, counts});
  }
  return operands;
}

NamedCall named_on(const Path& path, const std::vector<PyObject*>& modules, const ModuleNames& names,
                   uint64_t name_hash, const std::vector<pytorch::TensorOperand>& tensors, bool recomputing) {
  std::string source(path.source());
  const bool in_model = path.in_model();
  const uint64_t place = hash_of_place(name_hash, [&](std::string& text) { path.append_to(text); });
  NamedCall found{identify_at(place, modules, names, path.traced(), named(tensors), recomputing), in_model};
  found.place.source = std::move(source);
  return found;
}

bool any_dead() { return has_dead_objects() || has_dead_numbers(); }

bool all_named(const std::vector<PyObject*>& modules) {
  return std::all_of(modules.begin(), modules.end(), is_registered) && names_now(modules).size() == modules.size();
}

}  // namespace

std::optional<NamedCall> identify_kept(uint64_t name_hash, const std::vector<pytorch::TensorOperand>& tensors,
                                       bool recomputing) {
  const NamingLock lock(/*wait=*/false);
  if (!lock || any_dead()) return std::nullopt;
  std::optional<Call> call = call_here();
  if (!call && keep_steps() && !any_dead()) call = call_here();
  if (!call) return std::nullopt;
  return named_on(call->path, call->modules, call->names, name_hash, tensors, recomputing);
}

NamedCall name_call(const py::object& frame, uint64_t name_hash, const std::vector<pytorch::TensorOperand>& tensors,
                    bool recomputing) {
  const NamingLock lock(/*wait=*/true);
  const Unseen unseen;
  if (any_dead()) rules().tell_deaths();
  const py::list steps = steps_from(frame);
  const std::vector<PyObject*> modules = modules_in(steps);
  bool borrows = false;
  if (!all_named(modules)) borrows = rules().name_running(modules_of(steps), any_lends(steps)).cast<bool>();
  const ModuleNames names = names_given(modules);
  NamedCall found = named_on(path_of(steps, names), modules, names, name_hash, tensors, recomputing);
  found.in_model = found.in_model && !borrows;
  return found;
}

}  // namespace amanda::python
