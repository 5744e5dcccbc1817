#include "python/identity/operand_names.h"

#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/python_hooks.h"
#include "python/identity/numbers.h"
#include "python/identity/place_rules.h"
#include "python/identity/text.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

uint64_t number_for(const at::Tensor& tensor) {
  static bool watched = false;
  if (!watched) {
    rules().watch_exchanges();
    watched = true;
  }
  const uint64_t number = number_of(tensor);
  return number ? number : assign_number(tensor, /*counts=*/false);
}

/// Ordinals of parameters by place. A place uses each ordinal once.
///
/// A leaf that requires a gradient may also be an input that each step creates. Once kMany of them have died at a
/// place, all later ones get the same ordinal there, so that the number of ids stays bounded in a long run.
class LooseParameters {
 public:
  std::optional<int64_t> ordinal(const at::Tensor& tensor, PyObject* object, uint64_t place, bool recomputing) {
    if (const auto known = ordinals_.find(number_of(tensor)); known != ordinals_.end()) {
      if (const auto here = known->second.find(place); here != known->second.end()) return here->second;
    }
    constexpr int64_t kMany = 256;
    if (count(gone_, place) >= kMany) {
      const bool is_parameter = pytorch::python_hooks.tag(tensor.unsafeGetTensorImpl(), object) & 1;
      if (is_parameter) number_for(tensor);
      return -1;
    }
    const uint64_t number = number_for(tensor);
    if (recomputing) {  // a checkpoint detaches its inputs to recompute: it is the parameter of the first run
      const int64_t given = count(given_, place);
      return given ? std::optional(given - 1) : std::nullopt;
    }
    return ordinals_[number].try_emplace(place, given_[place]++).first->second;
  }

  void renumber(const at::Tensor& tensor) {
    const uint64_t had = number_of(tensor);
    if (had == 0) return;
    const uint64_t number = assign_number(tensor, /*counts=*/false);
    if (auto known = ordinals_.extract(had)) {
      known.key() = number;
      ordinals_.insert(std::move(known));
    }
  }

  void forget(uint64_t number) {
    const auto known = ordinals_.extract(number);
    if (!known) return;
    for (const auto& [place, ordinal] : known.mapped()) ++gone_[place];
  }

 private:
  using Counts = std::unordered_map<uint64_t, int64_t>;  // by place
  static int64_t count(const Counts& counts, uint64_t place) {
    const auto found = counts.find(place);
    return found == counts.end() ? 0 : found->second;
  }

  std::unordered_map<uint64_t, Counts> ordinals_;  // by the tensor's number
  Counts given_, gone_;
};

LooseParameters& loose() {
  static auto& parameters = *new LooseParameters;
  return parameters;
}

std::string shown(py::handle object) { return std::string(view(py::repr(object))); }

// A buffer's name in the model that holds it. Empty if none does.
std::string name_at_home(uint64_t number) {
  const auto key = py::reinterpret_steal<py::object>(PyLong_FromUnsignedLongLong(number));
  PyObject* homes = PyDict_GetItemWithError(rules().homes.ptr(), key.ptr());
  if (!homes) return {};
  for (py::handle home : py::reinterpret_borrow<py::list>(homes)) {
    const py::object module =
        py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(home.ptr(), 0))();  // a weak reference
    if (module.is_none()) continue;
    const ModuleName name = ModuleName::of(module.ptr(), rules().names);
    if (!name) throw py::key_error("a module has no name");
    const std::string own(view(PyTuple_GET_ITEM(home.ptr(), 1))), path(view(name.path()));
    return shown(py::make_tuple(name.model(), path.empty() ? own : path + "." + own));
  }
  return {};
}

// The parameter's name in a registered module and the modules in it, as Python shows it. Empty if it is not there.
std::string name_in(PyObject* module, PyObject* tensor) {
  static PyObject* const kind = PyUnicode_InternFromString("_parameters");
  const auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module, nullptr));
  if (!attributes) throw py::error_already_set();
  PyObject* parameters = PyDict_GetItemWithError(attributes.ptr(), kind);
  if (parameters && PyDict_Check(parameters)) {  // mostly it is the module's own
    PyObject *name, *parameter;
    for (Py_ssize_t i = 0; PyDict_Next(parameters, &i, &name, &parameter);) {
      if (parameter == tensor) return shown(py::str(name));
    }
  }
  const py::object found = rules().search(py::handle(module), py::handle(tensor));
  return found.is_none() ? std::string() : shown(found);
}

}  // namespace

std::string operand_name(const NamedOperand& operand, const std::vector<PyObject*>& modules, const ModuleNames& names,
                         uint64_t place, bool recomputing) {
  if (!operand.object) return "('unknown',)";
  const at::Tensor& tensor = THPVariable_Unpack(operand.object);
  const uint64_t number = number_of(tensor);
  if (number) {
    if (std::string name = name_at_home(number); !name.empty()) return name;
  }
  if (!operand.counts) return {};
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string found = name_in(modules[i], operand.object);
    if (found.empty()) continue;
    if (!number) number_for(tensor);
    std::string_view text = names[i].text();
    text.remove_suffix(1);  // its bracket
    return std::string(text) + ", " + found + ")";
  }
  const std::optional<int64_t> ordinal = loose().ordinal(tensor, operand.object, place, recomputing);
  return ordinal ? "('loose', " + std::to_string(*ordinal) + ")" : std::string();
}

void renumber_loose(const at::Tensor& tensor) { loose().renumber(tensor); }
void forget_loose(uint64_t number) { loose().forget(number); }

}  // namespace amanda::python
