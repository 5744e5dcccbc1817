#include "python/identity/naming.h"

#include <algorithm>
#include <utility>

#include "base/stack_value.h"
#include "python/identity/deaths.h"
#include "python/identity/model_names.h"
#include "python/identity/numbers.h"
#include "python/identity/path.h"
#include "python/identity/steps.h"
#include "python/identity/text.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

struct NamingTables {
  py::dict registered;
  py::object acquire, release, entered, blocks, hash;
};
NamingTables* naming_tables = nullptr;

/// The lock of call_path.naming(), if no other thread has it.
class NamingLock {
 public:
  NamingLock() : held_(py::bool_(naming_tables->acquire(false))) {}
  ~NamingLock() {
    if (!held_) return;
    const auto done = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(naming_tables->release.ptr()));
    if (!done) PyErr_Clear();
  }
  NamingLock(const NamingLock&) = delete;
  NamingLock& operator=(const NamingLock&) = delete;
  explicit operator bool() const { return held_; }

 private:
  bool held_;
};

// The same as frames.hash_of_text().
uint64_t hash_of(const std::string& text) {
  static PyObject* const digest = PyUnicode_InternFromString("digest");
  const py::bytes data(text);
  const auto hash = py::reinterpret_steal<py::object>(PyObject_CallOneArg(naming_tables->hash.ptr(), data.ptr()));
  if (!hash) throw py::error_already_set();
  const auto bytes = py::reinterpret_steal<py::bytes>(PyObject_CallMethodNoArgs(hash.ptr(), digest));
  if (!bytes) throw py::error_already_set();
  uint64_t number = 0;
  for (const char byte : std::string_view(bytes)) number = number >> 8 | uint64_t{static_cast<uint8_t>(byte)} << 56;
  return number;  // little-endian
}

bool is_registered(PyObject* module) {
  const auto address = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(module));
  return PyDict_GetItemWithError(naming_tables->registered.ptr(), address.ptr()) != nullptr;
}

// The frames that entered a scope. They count only where no model is around the call.
class Entered {
 public:
  // Returns false if a frame is in a block, whose name counts.
  bool ask() {
    if (py::len(naming_tables->blocks()) > 0) return false;
    frames_ = naming_tables->entered();
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

}  // namespace

void install_naming(py::dict registered, py::object lock, py::object entered, py::object blocks, py::object hash) {
  naming_tables = new NamingTables{std::move(registered), lock.attr("acquire"), lock.attr("release"),
                                   std::move(entered),    std::move(blocks),    std::move(hash)};
}

namespace {

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
                       const std::vector<NamedOperand>& operands, bool recomputing) {
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
  if (!names.empty()) found.module_path = encodable(names.front().path());
  return found;
}

}  // namespace

Identified identify(std::string_view path, const std::vector<PyObject*>& modules, uint64_t name_hash,
                    const std::vector<NamedOperand>& operands, bool recomputing) {
  const uint64_t place = hash_of_place(name_hash, [&](std::string& text) { text += path; });
  return identify_at(place, modules, names_given(modules), operands, recomputing);
}

std::optional<KeptCall> identify_kept(uint64_t name_hash, const std::vector<pytorch::TensorOperand>& tensors,
                                      bool recomputing) {
  const NamingLock lock;
  const auto any_dead = [] { return has_dead_objects() || has_dead_numbers(); };
  if (!lock || any_dead()) return std::nullopt;
  std::optional<Call> call = call_here();
  if (!call && keep_steps() && !any_dead()) call = call_here();
  if (!call) return std::nullopt;
  std::vector<NamedOperand> operands;
  for (const auto& [position, tensor, counts] : tensors) {
    PyObject* object = pytorch::py_object(*tensor);
    if (object || counts) operands.push_back({position, object, counts});
  }
  std::string source(call->path.source());
  const bool in_model = call->path.in_model();
  const uint64_t place = hash_of_place(name_hash, [&](std::string& text) { call->path.append_to(text); });
  KeptCall found{identify_at(place, call->modules, call->names, operands, recomputing), in_model};
  found.place.source = std::move(source);
  return found;
}

}  // namespace amanda::python
