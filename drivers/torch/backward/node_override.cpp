#include "backward/node_override.h"

#include <link.h>

#include <cstddef>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "amanda/base/mutex.h"
#include "base/port.h"

namespace amanda::pytorch {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

using Word = void*;
using Apply = variable_list (*)(Node*, variable_list&&);  // called like the member function

/// The index of Node::apply in the virtual tables of Node and its subclasses.
struct ApplySlot : Node {
  static size_t index() {
    variable_list (Node::*apply)(variable_list &&) = &ApplySlot::apply;
    ptrdiff_t words[2];  // the ABI's pointer to a virtual member: its offset in the table, with a tag bit
    static_assert(sizeof apply == sizeof words);
    std::memcpy(words, &apply, sizeof apply);
#if defined(__aarch64__) || defined(__arm__)
    return words[0] / sizeof(Word);
#else
    return (words[0] - 1) / sizeof(Word);
#endif
  }
};

size_t apply_slot() {
  static const size_t slot = ApplySlot::index();
  return slot;
}

Word*& table_of(Node& node) { return *reinterpret_cast<Word**>(&node); }

/// A class's virtual table with another apply(). A table's length is unknown, so this copies more than any node class
/// has, on both sides (type information and offsets lie before the first function).
struct OverriddenTable {
  static constexpr size_t kBefore = 8, kFunctions = 64;

  Word* original;
  Instead instead;
  Word words[kBefore + kFunctions];

  Word* functions() { return words + kBefore; }
  static OverriddenTable& holding(Word* functions) {
    return *reinterpret_cast<OverriddenTable*>(reinterpret_cast<char*>(functions - kBefore) -
                                               offsetof(OverriddenTable, words));
  }
};

/// The mapped segment that holds the table. Nothing outside may be read.
struct Mapping {
  explicit Mapping(const void* inside) : address(reinterpret_cast<uintptr_t>(inside)) {
    dl_iterate_phdr(
        [](dl_phdr_info* library, size_t, void* self) {
          auto& mapping = *static_cast<Mapping*>(self);
          for (size_t i = 0; i < library->dlpi_phnum; ++i) {
            const auto& segment = library->dlpi_phdr[i];
            const uintptr_t first = library->dlpi_addr + segment.p_vaddr;
            if (segment.p_type != PT_LOAD || mapping.address - first >= segment.p_memsz) continue;
            mapping.first = first;
            mapping.end = first + segment.p_memsz;
            return 1;
          }
          return 0;
        },
        this);
  }

  uintptr_t address, first = 0, end = 0;
};

// A variable that the address sanitizer guards may follow a table; reading it is harmless.
__attribute__((no_sanitize("address"))) void copy_table(Word* original, OverriddenTable& copy) {
  const Mapping mapping(original);
  Word* const start = original - OverriddenTable::kBefore;
  for (size_t i = 0; i < std::size(copy.words); ++i) {
    const auto at = reinterpret_cast<uintptr_t>(start + i);
    copy.words[i] = at >= mapping.first && at + sizeof(Word) <= mapping.end ? start[i] : nullptr;
  }
}

variable_list run_instead(Node* node, variable_list&& grad_outputs) {
  return OverriddenTable::holding(table_of(*node)).instead(*node, std::move(grad_outputs));
}

bool is_overridden(Word* functions) { return functions[apply_slot()] == reinterpret_cast<Word>(&run_instead); }

/// One per class of nodes, for the life of the process.
OverriddenTable& overridden(Word* original, Instead instead) {
  static auto& mutex = *new Mutex;
  static auto& tables = *new std::unordered_map<Word*, OverriddenTable>;
  std::lock_guard lock(mutex);
  OverriddenTable& table = tables[original];
  if (!table.original) {
    table.original = original;
    table.instead = instead;
    copy_table(original, table);
    table.functions()[apply_slot()] = reinterpret_cast<Word>(&run_instead);
  }
  return table;
}

}  // namespace

void override_apply(Node& node, Instead instead) {
  Word*& functions = table_of(node);
  Word* const now = __atomic_load_n(&functions, __ATOMIC_RELAXED);
  if (is_overridden(now)) return;
  __atomic_store_n(&functions, overridden(now, instead).functions(), __ATOMIC_RELEASE);
}

variable_list run_original(Node& node, variable_list&& grad_outputs) {
  Word* const functions = __atomic_load_n(&table_of(node), __ATOMIC_ACQUIRE);
  if (!is_overridden(functions)) return node(std::move(grad_outputs));
  const auto apply = reinterpret_cast<Apply>(OverriddenTable::holding(functions).original[apply_slot()]);
  return apply(&node, std::move(grad_outputs));
}

bool can_override_nodes() {
  struct Probe : Node {
    std::string name() const override { return "amanda's probe"; }
    variable_list apply(variable_list&& gradients) override {
      gradients.emplace_back();
      return std::move(gradients);
    }
  };
  static const bool can = [] {
    const port::NodePtr probe = port::make_node<Probe>();
    override_apply(*probe, [](Node& node, variable_list&& gradients) {
      return run_original(node, variable_list(gradients.size() + 1));
    });
    return (*probe)(variable_list(1)).size() == 3 && probe->name() == "amanda's probe";
  }();
  return can;
}

}  // namespace amanda::pytorch
