// The operator that made each tensor, found while operators run, by the memory of tensors; for GraphTracing.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "amanda/action.h"
#include "amanda/base/mutex.h"

namespace amanda::tools::pytorch {

// NOTE: [recognising a tensor]
// A routine receives a result through another Python object than the one its consumer will hold, so Python identity
// cannot be used. Neither a strong nor a weak reference to a tensor may be kept: a strong one keeps its memory alive, a
// weak one breaks torch.utils.swap_tensors. Result and operand share the storage and the layout in it (`MemoryLayout`).
//
// A storage is identified by its address, and we hold a weak reference to it (to the storage, which swap_tensors
// ignores). Its memory is freed with its last tensor as usual, but the small object at that address stays until the
// weak reference is released. So an address in our table cannot belong to a newer storage, and no tensor inherits the
// producers of a freed one.
//
// Several live tensors may have one layout: x and x.detach(). The newest is the one that was made last. The others are
// distinguished by the addresses that they had as operands of the operator that made it (`View::older`), when they and
// the new tensor were all alive.

/// An operator or a tensor from outside, as GraphTracing numbers it.
using NodeNumber = int64_t;
/// No node.
inline constexpr NodeNumber kNoNode = -1;

/// Where a tensor's elements are in its storage, and how they are read.
struct MemoryLayout {
  explicit MemoryLayout(const at::Tensor& tensor);
  bool operator==(const MemoryLayout& other) const = default;
  bool operator==(const at::Tensor& tensor) const;  // the same as with its layout
  /// True only if certain: this tensor fills its byte range without gaps, and the other's range is inside it.
  bool contains(const MemoryLayout& other) const;
  std::pair<int64_t, int64_t> range() const;  // in bytes

  int64_t offset;
  c10::SmallVector<int64_t, 5> sizes, strides;
  at::ScalarType dtype;
  bool conjugate, negative;
};

/// A position of an operator that takes a tensor of another operator.
struct GraphEdge {
  NodeNumber producer, consumer;
  int64_t position;
  bool operator==(const GraphEdge& other) const = default;
};

/// The live storages, and which operators made the tensors in them. May be used on any thread.
class Storages {
 public:
  /// `max_views`: layouts kept per storage. Tensors at an evicted place count as made by the maker of the layout
  /// evicted last.
  explicit Storages(size_t max_views);

  struct Storage;
  /// A tensor as an operator consumed it.
  struct Read {
    const void* address;
    std::shared_ptr<Storage> storage;
    MemoryLayout layout;
    NodeNumber maker;
  };
  using Reads = std::vector<Read>;
  /// The consumer of a tensor: an operator, the position there, and the number of the tensor among those at that
  /// position.
  using Slot = std::tuple<NodeNumber, int64_t, int64_t>;
  /// The effects of an operator on its operands, by its schema.
  struct Operator {
    NodeNumber node;
    std::vector<size_t> written;   // inputs
    std::vector<size_t> returned;  // results that are no inputs
  };

  // ---- in routines without Python, which decline where the graph grows, and where a tensor needs Python

  bool before(Values& values, const Operator& op);
  /// Where before() did not decline and this does, the results alone are left to do, with declined_reads().
  bool after(Values& values, const Operator& op);
  /// The declined reads of the calling thread.
  static Reads declined_reads();

  // ---- from Python, of tensors without wrappers

  /// The graph has the node, from now on.
  void add_node(NodeNumber node);
  /// True if the tensor is from outside, and new.
  bool is_new_outside(const at::Tensor& tensor);
  /// The tensor is consumed: the edges that are new. `outside`: where it comes from, if it is_new_outside().
  std::pair<Read, std::vector<GraphEdge>> read(const at::Tensor& tensor, const Slot& slot, NodeNumber outside);
  /// `writer` overwrote the tensor.
  void write(const at::Tensor& tensor, NodeNumber writer);
  /// `maker`, which consumed `reads`, returned the tensor.
  void make(const at::Tensor& tensor, NodeNumber maker, const Reads& reads);
  /// For each storage, the number of kept layouts and the number of kept last writes.
  std::vector<std::pair<size_t, size_t>> sizes() const;
  void reset();

 private:
  struct View;
  struct Seen;
  struct ThisRun;
  using Known = std::unordered_map<c10::StorageImpl*, std::shared_ptr<Storage>>;
  struct EdgeHash {
    size_t operator()(const GraphEdge& edge) const;
  };
  static ThisRun& this_run(uint64_t storages);
  Storage* find(const at::Tensor& tensor) const;  // null if it is not known
  const std::shared_ptr<Storage>& find_or_add(const at::Tensor& tensor);
  void drop_dead();
  // `Layout`: a MemoryLayout; or a tensor, if its sizes can be read without Python.
  template <class Layout>
  View& put(Storage& storage, const Layout& layout, NodeNumber maker);
  bool look_up(const at::Tensor& tensor, const Slot& slot, ThisRun& run);
  Reads reads_of(const ThisRun& run, const c10::StorageImpl* memory = nullptr) const;  // null for all memory
  /// Calls `fn` with `edge` from the tensor's maker and with the edges from later writers, known or not, until it
  /// returns false.
  template <class Layout, class Fn>
  bool each_edge(const Storage& storage, const View* view, const Layout& layout, GraphEdge edge, const Fn& fn) const;
  template <class Layout>
  void write_here(const at::Tensor& tensor, const Layout& layout, NodeNumber writer);
  template <class Layout>
  void make_here(const at::Tensor& tensor, const Layout& layout, NodeNumber maker, const Reads& reads);

  const uint64_t serial_;  // of this process
  const size_t max_views_;
  mutable Mutex mutex_;  // guards the members below
  Known storages_;
  std::vector<Known::node_type> spare_;  // of storages that died: to be used again
  std::unordered_set<NodeNumber> nodes_;
  std::map<Slot, NodeNumber> outside_;  // the nodes of tensors from outside, by their first consumers
  std::unordered_set<GraphEdge, EdgeHash> edges_;
  size_t limit_ = 128;
  int64_t clock_ = 0;
};

}  // namespace amanda::tools::pytorch
