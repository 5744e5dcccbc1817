#include "base/node_types.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <array>
#include <string_view>
#include <typeinfo>

#include "amanda/base/per_thread.h"
#include "base/hash.h"

namespace amanda::pytorch {

std::string_view plain_name(std::string_view name) {
  constexpr std::string_view kNamespace = "torch::autograd::";
  if (name.starts_with(kNamespace)) name.remove_prefix(kNamespace.size());
  return name;
}

// Every name() computes the name again, sometimes by demangling, so names are cached by class: by its virtual table,
// which typeid() would have to read.
const NodeType& NodeTypes::of(const torch::autograd::Node& node) {
  struct Known {
    const void* functions = nullptr;
    const NodeType* type = nullptr;
  };
  using Table = std::array<Known, 256>;
  Table& table = per_thread<Table>();

  const void* const functions = *reinterpret_cast<const void* const*>(&node);
  // Two that would have the same entry are neighbors.
  const size_t at = (reinterpret_cast<uintptr_t>(functions) >> 4) % (table.size() / 2) * 2;
  for (size_t i = at; i < at + 2; ++i) {
    if (table[i].functions == functions) return *table[i].type;
  }
  const std::type_info& cls = typeid(node);
  const NodeType& type = named(std::string(plain_name(node.name())), cls == typeid(torch::autograd::AccumulateGrad));
  // One class serves all Python functions. It is identified by name: libtorch_python does not export what
  // typeid(PyNode) needs.
  if (std::string_view(cls.name()).find("PyNode") == std::string_view::npos) {
    table[table[at].functions ? at + 1 : at] = {functions, &type};
  }
  return type;
}

const NodeType& NodeTypes::of(OpType type) const {
  std::lock_guard lock(mutex_);
  return types_.at(type & ~kNodeTypes);
}

const NodeType& NodeTypes::named(const std::string& name, bool accumulates) {
  std::lock_guard lock(mutex_);
  const NodeType*& type = by_name_[name];
  if (!type) {
    OpInfo info{"autograd", name, "", {}, {}, "autograd::" + name + "(grad_outputs) -> grad_inputs"};
    type = &types_.emplace_back(
        NodeType{static_cast<OpType>(types_.size()) | kNodeTypes, std::move(info), fnv1a(name), accumulates});
  }
  return *type;
}

NodeTypes& node_types() {
  static auto* types = new NodeTypes;
  return *types;
}

}  // namespace amanda::pytorch
