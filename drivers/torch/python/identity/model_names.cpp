#include "python/identity/model_names.h"

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/python_hooks.h"
#include "python/identity/deaths.h"
#include "python/identity/model_parts.h"
#include "python/identity/text.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

using Address = const PyObject*;

/// The modules that were at one path of a model, in the order in which they were first there.
///
/// Modules with parameters or buffers of their own have ids of their own: an object that a tool has made for one fits
/// no other. A module that comes back has its ids again.
class Occupants {
 public:
  size_t ordinal(uint64_t module) {
    constexpr size_t kMost = 64;
    if (const auto known = ordinals_.find(module); known != ordinals_.end()) return known->second;
    if (ordinals_.size() >= kMost) ordinals_.clear();
    return ordinals_[module] = ++count_;
  }

 private:
  std::unordered_map<uint64_t, size_t> ordinals_;  // by number
  size_t count_ = 0;
};

struct Model {
  py::object outermost;  // weak
  uint64_t number = 0;   // in the order of first runs
  uint64_t epoch = 0;    // in which its modules were listed
  std::unordered_map<Address, py::object> names;
  std::unordered_set<Address> without;              // running modules that it was listed for, and did not hold
  std::unordered_map<std::string, Occupants> at{};  // by path

  bool is_alive() const { return !outermost().is_none(); }
  ModuleName name_of(Address module) const {
    const auto found = names.find(module);
    return ModuleName(found == names.end() ? nullptr : found->second.ptr());
  }
};

// All models, by the outermost module.
std::unordered_map<Address, Model>& models = *new std::unordered_map<Address, Model>;
// The outermost module of the model at home.
std::unordered_map<Address, Address>& homes = *new std::unordered_map<Address, Address>;
// The numbers of all modules that have names, for Occupants.
std::unordered_map<Address, uint64_t>& module_numbers = *new std::unordered_map<Address, uint64_t>;
uint64_t last_module_number = 0;

uint64_t number_of_module(Address module) {
  uint64_t& number = module_numbers[module];
  if (!number) number = ++last_module_number;
  return number;
}

uint64_t current_epoch() { return pytorch::python_hooks.epoch.load(std::memory_order_acquire); }

Model* find_model(Address outermost) {
  const auto found = models.find(outermost);
  return found == models.end() ? nullptr : &found->second;
}

// The model in which a module is named that is called directly. Null if there is none.
Model* model_of(Address module) {
  if (Model* own = find_model(module)) return own;
  const auto home = homes.find(module);
  Model* model = home == homes.end() ? nullptr : find_model(home->second);
  return model && model->is_alive() && model->name_of(module) ? model : nullptr;
}

// The first model that holds a module. Null if none does.
Model* first_with(Address module) {
  Model* first = nullptr;
  for (auto& [outermost, model] : models) {
    if (model.name_of(module) && (!first || model.number < first->number)) first = &model;
  }
  return first;
}

Address outermost_of(const Model& model) { return py::object(model.outermost()).ptr(); }

py::object address_key(Address module) {
  auto key = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(const_cast<PyObject*>(module)));
  if (!key) throw py::error_already_set();
  return key;
}

// ---- the modules that run ----------------------------------------------------------------------------------------

using RunningModels = c10::SmallVector<Model*, 4>;  // outermost first

ModuleName found_in(const RunningModels& running, Address module) {
  for (const Model* model : running) {
    if (const ModuleName name = model->name_of(module)) return name;
  }
  return ModuleName(nullptr);
}

struct Missing {
  Address outermost = nullptr;   // of the model that is to be named
  Address looked_for = nullptr;  // in that model, which has names
};

// Calls `see(module, name)` for each, outermost first. Stops where something is to be named first.
template <class See>
Missing each_name(const std::vector<PyObject*>& modules, const See& see) {
  const uint64_t epoch = current_epoch();
  RunningModels running;
  c10::SmallVector<Address, 4> outermost;  // of these
  for (size_t i = modules.size(); i-- > 0;) {
    Address module = modules[i];
    ModuleName name = found_in(running, module);
    if (!name) {
      for (size_t j = 0; j < running.size(); ++j) {
        if (!running[j]->without.contains(module)) return {.outermost = outermost[j], .looked_for = module};
      }
      Model* own = model_of(module);
      if (!own) return {.outermost = module};
      // A module without state may be at the address of one that has died: it is itself the outermost one.
      outermost.push_back(own == find_model(module) ? module : outermost_of(*own));
      if (own->epoch != epoch) return {.outermost = outermost.back()};
      running.push_back(own);
      name = own->name_of(module);
    }
    see(i, name);
  }
  return {};
}

std::vector<PyObject*> pointers(const py::list& modules) {
  std::vector<PyObject*> all;
  for (py::handle module : modules) all.push_back(module.ptr());
  return all;
}

}  // namespace

ModuleNames names_now(const std::vector<PyObject*>& running) {
  ModuleNames names(running.size(), ModuleName(nullptr));
  const Missing missing = each_name(running, [&](size_t i, ModuleName name) { names[i] = name; });
  if (missing.outermost) names.clear();
  return names;
}

ModuleNames names_given(const std::vector<PyObject*>& running) {
  ModuleNames names(running.size(), ModuleName(nullptr));
  RunningModels models_running;
  for (size_t i = running.size(); i-- > 0;) {
    names[i] = found_in(models_running, running[i]);
    if (names[i]) continue;
    Model* own = model_of(running[i]);
    if (!own) throw py::key_error("a module has no name");
    models_running.push_back(own);
    names[i] = own->name_of(running[i]);
  }
  return names;
}

py::object next_to_name(const py::list& running) {
  const Missing missing = each_name(pointers(running), [](size_t, ModuleName) {});
  if (!missing.outermost) return py::none();
  if (missing.looked_for) model_of(missing.outermost)->without.insert(missing.looked_for);
  return py::reinterpret_borrow<py::object>(const_cast<PyObject*>(missing.outermost));
}

py::object name_among(const py::list& running, py::handle module) {
  RunningModels models_running;
  for (size_t i = running.size(); i-- > 0;) {
    Address each = PyList_GET_ITEM(running.ptr(), static_cast<Py_ssize_t>(i));
    if (found_in(models_running, each)) continue;
    if (Model* own = model_of(each)) models_running.push_back(own);
  }
  return found_in(models_running, module.ptr()).object();
}

py::object home_name(py::handle module) {
  const Model* model = model_of(module.ptr());
  return model ? model->name_of(module.ptr()).object() : py::none();
}

// ---- names in a model ---------------------------------------------------------------------------------------------

namespace {

/// Names the parts of a model anew.
class PartsNaming {
 public:
  PartsNaming(Address outermost, Model& model, bool is_new, const py::str& name, const py::dict& names)
      : outermost_(outermost), model_(model), is_new_(is_new), name_(name), names_(names) {
    start_ = "(" + std::string(view(py::repr(name))) + ", ";
  }

  void add(py::handle module, const py::object& path, bool has_state) {
    const ModuleName had = model_.name_of(module.ptr());
    std::string text = start_ + std::string(view(py::repr(path)));
    if (holds_state(module)) {
      const size_t ordinal = model_.at[std::string(view(py::repr(path)))].ordinal(number_of_module(module.ptr()));
      if (ordinal > 1) text += ", " + std::to_string(ordinal);
    }
    text += ")";
    const bool is_same = had && had.text() == text && had.has_state() == has_state;
    py::object name = is_same ? had.object() : new_name(name_, path, has_state, text);
    is_changed |= !is_same && !is_new_ && (had || homes.contains(module.ptr()));
    if (is_at_home(module.ptr())) names_[address_key(module.ptr())] = name;
    named_.emplace(module.ptr(), std::move(name));
  }

  /// The addresses of modules that have no name any more.
  py::list finish() {
    const auto former = std::exchange(model_.names, std::move(named_));
    py::list gone;
    for (const auto& [module, name] : former) {
      if (model_.names.contains(module)) continue;
      is_changed = true;
      const auto home = homes.find(module);
      if (home == homes.end() || home->second != outermost_) continue;
      const py::object key = address_key(module);
      if (const Model* other = first_with(module)) {
        home->second = outermost_of(*other);
        names_[key] = other->name_of(module).object();
        continue;
      }
      homes.erase(home);
      if (PyDict_DelItem(names_.ptr(), key.ptr()) < 0) PyErr_Clear();
      gone.append(key);
    }
    return gone;
  }

  bool is_changed = false;

 private:
  bool is_at_home(Address module) {
    const Address home = homes.try_emplace(module, outermost_).first->second;
    return home == outermost_;
  }

  Address outermost_;
  Model& model_;
  bool is_new_;
  const py::str& name_;
  const py::dict& names_;
  std::string start_;
  std::unordered_map<Address, py::object> named_;
};

}  // namespace

py::list name_parts(const py::list& parts, const py::str& name, const py::bytes& with_state, const py::dict& names,
                    bool is_plain) {
  const auto flags = static_cast<std::string_view>(with_state);
  const py::handle outermost = part_of(parts, 0).second;
  for (size_t i = parts.size(); i-- > 0;) {
    watch(part_of(parts, i).second.ptr(), is_plain ? Watch::kPlain : Watch::kAddress);
  }
  const auto [found, is_new] = models.try_emplace(outermost.ptr());
  Model& model = found->second;
  if (is_new) model.number = ++last_module_number;
  if (is_new || !model.is_alive()) {
    model.outermost = py::reinterpret_steal<py::object>(PyWeakref_NewRef(outermost.ptr(), nullptr));
    if (!model.outermost) throw py::error_already_set();
  }
  PartsNaming naming(outermost.ptr(), model, is_new, name, names);
  for (size_t i = parts.size(); i-- > 0;) {
    const auto [path, module] = part_of(parts, i);
    naming.add(module, py::reinterpret_borrow<py::object>(path), flags[i] != 0);
  }
  py::list gone = naming.finish();
  if (naming.is_changed) start_new_epoch();
  const uint64_t epoch = current_epoch();
  if (model.epoch != epoch) model.without.clear();
  model.epoch = epoch;
  return gone;
}

void forget_model(uintptr_t address) {
  const auto* object = reinterpret_cast<Address>(address);
  module_numbers.erase(object);
  homes.erase(object);
  if (const auto found = models.find(object); found != models.end()) {
    const Model dropped = std::move(found->second);  // destroyed last: that may run Python code
    models.erase(found);
    for (const auto& [part, name] : dropped.names) {
      if (const auto home = homes.find(part); home != homes.end() && home->second == object) homes.erase(home);
    }
  }
}

}  // namespace amanda::python
