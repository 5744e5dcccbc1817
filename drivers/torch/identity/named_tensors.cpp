#include "identity/named_tensors.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "amanda/base/leaked.h"
#include "amanda/base/mutex.h"
#include "amanda/error.h"
#include "amanda/torch_modules.h"
#include "base/lifetime.h"
#include "identity/origin.h"

namespace amanda::pytorch {
namespace {

using torch::nn::Module;
using Path = std::vector<std::string>;

/// A model that has names. On the stack it has no owner, and outlives its ModuleNames.
struct Model {
  std::weak_ptr<const Module> owned;
  const Module* unowned;  // null if it is owned

  explicit Model(const Module& module) : owned(module.weak_from_this()), unowned(owned.expired() ? &module : nullptr) {}
  std::shared_ptr<const Module> alive() const {
    return unowned ? std::shared_ptr<const Module>(std::shared_ptr<void>(), unowned) : owned.lock();
  }
};

/// Where a model holds a tensor.
struct Spot {
  uint64_t number;  // of the model
  std::shared_ptr<const Model> model;
  Path modules;
  std::string name;  // in the innermost of them
};

struct NamedTensor {
  WeakTensor tensor;  // distinguishes a live tensor from another at its address
  uint64_t number;
  std::vector<Spot> spots;  // by the numbers of their models
};

/// All that have names. No module's code runs under the lock: a module may own the ModuleNames of itself.
struct Registry {
  Mutex mutex;
  std::unordered_map<const c10::TensorImpl*, NamedTensor> tensors;
  std::unordered_map<OpId, std::string> paths;  // of operators
  uint64_t last_model = 0, last_tensor = 0;
  std::atomic<size_t> models = 0;
};

Registry& registry() { return leaked<Registry>(); }

const at::Tensor* member(const torch::OrderedDict<std::string, at::Tensor>& tensors, const std::string& name,
                         const c10::TensorImpl* tensor) {
  const at::Tensor* found = tensors.find(name);
  return found && found->unsafeGetTensorImpl() == tensor ? found : nullptr;
}

/// True if the model is alive, and still holds the tensor there.
bool holds(const Spot& spot, const c10::TensorImpl* tensor) {
  std::shared_ptr<const Module> module = spot.model->alive();
  for (const std::string& name : spot.modules) {
    if (!module) return false;
    const auto children = module->named_children();
    const auto* child = children.find(name);
    module = child ? *child : nullptr;
  }
  if (!module) return false;
  return member(module->named_parameters(/*recurse=*/false), spot.name, tensor) ||
         member(module->named_buffers(/*recurse=*/false), spot.name, tensor);
}

std::optional<Spot> spot_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = origin_of(tensor).unsafeGetTensorImpl();
  std::vector<Spot> spots;
  {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    const auto found = all.tensors.find(impl);
    if (found == all.tensors.end() || found->second.tensor.expired()) return std::nullopt;
    spots = found->second.spots;
  }
  for (Spot& spot : spots) {
    if (holds(spot, impl)) return std::move(spot);
  }
  return std::nullopt;
}

std::string joined(const Path& modules) {
  std::string path;
  for (const std::string& name : modules) path += (path.empty() ? "" : ".") + name;
  return path;
}

/// The module that several tensors have in common.
class Common {
 public:
  void add(Spot spot) {
    if (!first_) {
      first_ = std::move(spot);
      return;
    }
    Path& path = first_->modules;
    if (spot.number != first_->number) path.clear();
    const auto differs = std::mismatch(path.begin(), path.end(), spot.modules.begin(), spot.modules.end()).first;
    path.erase(differs, path.end());
  }
  std::string path() const { return first_ ? joined(first_->modules) : ""; }

 private:
  std::optional<Spot> first_;
};

/// Notes the tensors of a model under their first names.
class Naming {
 public:
  Naming(uint64_t number, std::shared_ptr<const Model> model) : number_(number), model_(std::move(model)) {}

  void add(const Module& module, const Path& path) {
    if (!visited_.insert(&module).second) return;
    for (const auto& parameter : module.named_parameters(/*recurse=*/false))
      add(parameter.value(), path, parameter.key());
    for (const auto& buffer : module.named_buffers(/*recurse=*/false)) add(buffer.value(), path, buffer.key());
    for (const auto& child : module.named_children()) {
      if (!child.value()) continue;
      Path inner = path;
      inner.push_back(child.key());
      add(*child.value(), inner);
    }
  }
  void put_into(Registry& all) {
    for (auto& [tensor, spot] : found_) {
      auto known = all.tensors.find(tensor.unsafeGetTensorImpl());
      if (known != all.tensors.end() && known->second.tensor.expired()) {
        all.tensors.erase(known);
        known = all.tensors.end();
      }
      if (known == all.tensors.end()) {
        NamedTensor named{WeakTensor(tensor), ++all.last_tensor, {}};
        known = all.tensors.emplace(tensor.unsafeGetTensorImpl(), std::move(named)).first;
      }
      known->second.spots.push_back(std::move(spot));
    }
  }

 private:
  void add(const at::Tensor& tensor, const Path& path, const std::string& name) {
    if (!tensor.defined() || !tensors_.insert(tensor.unsafeGetTensorImpl()).second) return;
    found_.emplace_back(tensor, Spot{number_, model_, path, name});
  }

  uint64_t number_;
  std::shared_ptr<const Model> model_;
  std::unordered_set<const Module*> visited_;
  std::unordered_set<const c10::TensorImpl*> tensors_;
  std::vector<std::pair<at::Tensor, Spot>> found_;
};

}  // namespace

bool has_named_tensors() { return registry().models.load(std::memory_order_relaxed) != 0; }

uint64_t named_tensor_number(const at::Tensor& tensor) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  const auto found = all.tensors.find(tensor.unsafeGetTensorImpl());
  return found == all.tensors.end() || found->second.tensor.expired() ? 0 : found->second.number;
}

std::string named_tensor(const at::Tensor& tensor) {
  const std::optional<Spot> spot = spot_of(tensor);
  if (!spot) return "";
  const std::string path = joined(spot->modules);
  return path.empty() ? spot->name : path + "." + spot->name;
}

std::string path_of_named(const OpRecord& record, c10::ArrayRef<OperandTensor> arguments) {
  Common common;
  for (const auto& [position, tensor] : arguments) {
    const bool written = std::find(record.mutated.begin(), record.mutated.end(), position) != record.mutated.end();
    if (written) continue;
    if (std::optional<Spot> spot = spot_of(*tensor)) common.add(std::move(*spot));
  }
  return common.path();
}

void remember_path(OpId id, const std::string& path) {
  constexpr size_t kMost = 1 << 16;
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  if (all.paths.size() >= kMost) all.paths.clear();
  if (path.empty()) {
    all.paths.erase(id);
  } else {
    all.paths[id] = path;
  }
}

std::string remembered_path(OpId id) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  const auto found = all.paths.find(id);
  return found == all.paths.end() ? "" : found->second;
}

// ---- amanda/torch_modules.h ----------------------------------------------------------------------------------------

const Module& ModuleNames::checked(const Module* model) {
  if (model) return *model;
  throw Error("[torch] ModuleNames: the model is null: its holder or pointer is empty; create the module first");
}

ModuleNames::ModuleNames(const Module& model) {
  Registry& all = registry();
  {
    std::lock_guard lock(all.mutex);
    number_ = ++all.last_model;
  }
  Naming naming(number_, std::make_shared<const Model>(model));
  naming.add(model, {});
  std::lock_guard lock(all.mutex);
  naming.put_into(all);
  ++all.models;
}

ModuleNames::~ModuleNames() {
  if (number_ == 0) return;
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  for (auto entry = all.tensors.begin(); entry != all.tensors.end();) {
    std::vector<Spot>& spots = entry->second.spots;
    std::erase_if(spots, [this](const Spot& spot) { return spot.number == number_; });
    entry = spots.empty() ? all.tensors.erase(entry) : std::next(entry);
  }
  --all.models;
}

}  // namespace amanda::pytorch
