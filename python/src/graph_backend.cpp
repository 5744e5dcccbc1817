#include "graph_backend.h"

#include <fmt/format.h>

#include <mutex>

#include "amanda/driver/engine.h"
#include "graph_call.h"
#include "object_info.h"

namespace amanda::python {
namespace {

struct ThreadState {
  std::vector<ScopeStack*> scopes;  // by backend
  size_t routines = 0;              // running on this thread
  /// By backend: entries of scopes, and whether an operator was called since.
  std::vector<std::vector<std::pair<uint64_t, bool>>> awaits;

  void called(size_t backend) {
    if (backend >= awaits.size()) return;
    for (auto& [entry, is_called] : awaits[backend]) is_called = true;
  }
};
thread_local ThreadState this_thread;

}  // namespace

PyGraphBackend::PyGraphBackend(std::string name_space, Capabilities capabilities)
    : name_space_(std::move(name_space)), capabilities_(capabilities) {}

PyGraphBackend& PyGraphBackend::make(std::string name_space, Capabilities capabilities, const std::string& same_ids_as,
                                     PythonBridge& bridge) {
  if (const Backend* known = Engine::find_backend(name_space)) {  // a module that is loaded again
    if (auto* ours = dynamic_cast<const PyGraphBackend*>(known)) return const_cast<PyGraphBackend&>(*ours);
    throw Error(fmt::format("[python] there is a driver '{}' already; choose another name space", name_space));
  }
  const Backend* numbering = same_ids_as.empty() ? nullptr : Engine::find_backend(same_ids_as);
  if (!same_ids_as.empty() && !numbering) {
    throw Error(fmt::format("[python] '{}' cannot have the operator ids of '{}': no such driver is attached",
                            name_space, same_ids_as));
  }
  auto* made = new PyGraphBackend(std::move(name_space), capabilities);
  register_bridge(*made, bridge);
  Engine::attach(*made, kSeamVersion, numbering);
  return *made;
}

OpType PyGraphBackend::intern(OpInfo info) {
  std::lock_guard lock(mutex_);
  for (size_t type = 0; type < infos_.size(); ++type) {
    const OpInfo& known = infos_[type];
    if (known.name == info.name && known.ns == info.ns && known.overload == info.overload) return type;
  }
  infos_.push_back(std::move(info));
  return infos_.size() - 1;
}

const OpInfo& PyGraphBackend::info(OpType type) const {
  std::lock_guard lock(mutex_);
  if (type < infos_.size()) return infos_[type];
  throw Error(
      fmt::format("[python] the driver '{}' has no operator type {}; intern() gives the numbers", name_space_, type));
}

void PyGraphBackend::set_on_switch(const py::object& callback) {
  on_switch_ = PyRef(callback.is_none() ? nullptr : py::object(callback).release().ptr());
}

void PyGraphBackend::set_name_parameters(const py::object& name) {
  name_parameters_ = PyRef(name.is_none() ? nullptr : py::object(name).release().ptr());
}

void PyGraphBackend::set_describe(const py::object& describe) {
  describe_ = PyRef(describe.is_none() ? nullptr : py::object(describe).release().ptr());
}

ValueInfo PyGraphBackend::describe(Value value) const {
  if (!value.ref) return {};
  if (const NativeOperand* operand = NativeOperand::of(value)) return operand->describe();
  py::gil_scoped_acquire gil;
  return info_of(object_of(value), describe_.get());
}

std::string PyGraphBackend::parameter_name(Value tensor) const {
  if (!tensor.ref || !name_parameters_ || NativeOperand::of(tensor)) return {};
  py::gil_scoped_acquire gil;
  if (PyList_Check(object_of(tensor))) return {};
  return name_of(object_of(tensor));
}

std::vector<std::string> PyGraphBackend::parameter_names(Value list) const {
  if (!list.ref || !name_parameters_ || NativeOperand::of(list)) return {};
  py::gil_scoped_acquire gil;
  if (!PyList_Check(object_of(list))) return {};
  std::vector<std::string> names;
  for (py::handle member : py::reinterpret_borrow<py::list>(object_of(list))) names.push_back(name_of(member));
  return names;
}

std::string PyGraphBackend::name_of(py::handle symbol) const {
  if (symbol.is_none()) return {};
  const py::object name = py::handle(name_parameters_.get())(symbol);
  return name.is_none() ? "" : text_of(name);
}

ToolsetPtr PyGraphBackend::toolset() const {
  ThreadState& here = this_thread;
  ScopeStack* open = here.routines > 0 ? nullptr : scopes();
  if (!open) return nullptr;
  here.called(index());
  return Engine::toolset(*open);
}

// A driver in Python is attached when it is first needed, and other threads may be in scopes by then.
ScopeStack* PyGraphBackend::scopes() const {
  std::vector<ScopeStack*>& known = this_thread.scopes;
  if (known.size() <= index()) const_cast<PyGraphBackend*>(this)->switch_to(Engine::scopes_here().get());
  return known[index()];
}

bool PyGraphBackend::has_scopes() const { return scopes() != nullptr; }

bool PyGraphBackend::wants(OpType type) const {
  ThreadState& here = this_thread;
  ScopeStack* open = here.routines > 0 ? nullptr : scopes();
  if (!open) return false;
  here.called(index());
  return Engine::wants(*open, *this, type);
}

bool PyGraphBackend::is_asked_for(OpType type, bool is_backward, const std::vector<const Tool*>& tools) const {
  const ScopeStack* open = scopes();
  return open && Engine::is_asked_for(*open, *this, type, tools) &&
         (!is_backward || Engine::asks_for_backward(*open, tools));
}

void PyGraphBackend::await_call(uint64_t entry, bool /*elsewhere*/) {
  auto& awaits = this_thread.awaits;
  if (awaits.size() <= index()) awaits.resize(index() + 1);
  awaits[index()].emplace_back(entry, false);
}

// The driver asks for the tools in force where operators are called.
AwaitedCall PyGraphBackend::end_await_call(uint64_t entry) {
  auto& awaits = this_thread.awaits;
  if (awaits.size() <= index()) return {};  // attached since
  AwaitedCall awaited;
  std::erase_if(awaits[index()], [&](const auto& one) {
    awaited.here |= one.first == entry && one.second;
    return one.first == entry;
  });
  return awaited;
}

void PyGraphBackend::switch_to(ScopeStack* scopes) {
  auto& known = this_thread.scopes;
  if (known.size() <= index()) known.resize(index() + 1);
  known[index()] = scopes;
  if (!on_switch_) return;
  py::gil_scoped_acquire gil;
  py::reinterpret_borrow<py::object>(on_switch_.get())();
}

void* PyGraphBackend::begin_routines(RoutineMode) {
  ++this_thread.routines;
  return nullptr;
}
void PyGraphBackend::end_routines(void*) noexcept { --this_thread.routines; }

std::string PyGraphBackend::refusal(OpSite& site, const ActionInfo& action, size_t position) const {
  if (const auto* shown = dynamic_cast<const RefusingSite*>(&site)) return shown->refusal(action, position);
  if (const auto* call = dynamic_cast<const GraphCall*>(&site)) return call->refusal(action, position);
  return "";
}

}  // namespace amanda::python
