#include "graph/storages.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <ranges>

#include "values/tensors.h"

namespace amanda::tools::pytorch {
namespace {

std::atomic<uint64_t> serials{0};

struct Written {
  std::vector<at::Tensor> tensors{};  // what the operator ran on may not be shown after it
};

thread_local Storages::Reads declined;

bool is_tracked(const at::Tensor& tensor) { return is_plain(tensor) && tensor.has_storage(); }

// The 2 of `x * 2` arrives as a tensor.
bool is_number(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

}  // namespace

MemoryLayout::MemoryLayout(const at::Tensor& tensor)
    : offset(tensor.storage_offset()),
      dtype(tensor.scalar_type()),
      conjugate(tensor.is_conj()),
      negative(tensor.is_neg()) {
  if (tensor.is_nested()) return;
  sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  strides.assign(tensor.strides().begin(), tensor.strides().end());
}

bool MemoryLayout::operator==(const at::Tensor& tensor) const {
  if (offset != tensor.storage_offset() || dtype != tensor.scalar_type()) return false;
  if (conjugate != tensor.is_conj() || negative != tensor.is_neg()) return false;
  if (tensor.is_nested()) return sizes.empty();
  return std::ranges::equal(sizes, tensor.sizes()) && std::ranges::equal(strides, tensor.strides());
}

std::pair<int64_t, int64_t> MemoryLayout::range() const {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  return {offset * size, (offset + last + 1) * size};
}

bool MemoryLayout::contains(const MemoryLayout& other) const {
  const auto [begin, end] = range();
  const auto [other_begin, other_end] = other.range();
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : sizes) bytes *= size;
  return bytes == end - begin && begin <= other_begin && other_end <= end;
}

/// The tensors with one layout in a storage.
struct Storages::View {
  MemoryLayout layout;
  NodeNumber maker;                                         // returned the newest one, or overwrote all of them
  int64_t time;                                             // when
  int64_t used;                                             // last
  std::vector<std::pair<const void*, NodeNumber>> older{};  // makers of older tensors, by the tensors' addresses
  NodeNumber outside = kNoNode;                             // what they were before any operator wrote to them
};

struct Storages::Storage {
  using Memory = c10::weak_intrusive_ptr<c10::StorageImpl>;

  explicit Storage(Memory memory) : alive(std::move(memory)) {}

  void become(Memory memory) {
    alive = std::move(memory);
    maker = kNoNode;
    views.clear();
    writes.clear();
  }

  template <class Layout>
  View* find(const Layout& layout) {
    const auto at = std::find_if(views.rbegin(), views.rend(), [&](const View& view) { return view.layout == layout; });
    return at == views.rend() ? nullptr : &*at;
  }

  /// The maker of the tensor at this address; `view`: the tensor's view, if it is known.
  NodeNumber maker_of(const View* view, const void* address) const {
    if (!view) return maker;
    const auto at =
        std::find_if(view->older.begin(), view->older.end(), [&](const auto& older) { return older.first == address; });
    return at == view->older.end() ? view->maker : at->second;
  }

  Memory alive;
  NodeNumber maker = kNoNode;  // of unknown views; kNoNode if they come from outside
  c10::SmallVector<View, 1> views;
  struct Write {
    NodeNumber writer;
    MemoryLayout layout;
    int64_t time;
  };
  std::vector<Write> writes;  // the last one of each operator
};

/// A tensor that a running operator has consumed. It holds no references, because the operator may throw.
struct Storages::Seen {
  const void* address;
  c10::StorageImpl* memory;  // only compared, and looked up
  NodeNumber maker;
  size_t view = 0;                     // its index in the storage
  std::optional<MemoryLayout> layout;  // where it is, if that is not known there
};

/// The operator that runs on this thread. A tool sees no other inside it.
struct Storages::ThisRun {
  uint64_t storages;          // whose
  NodeNumber node = kNoNode;  // kNoNode if before() declined
  std::vector<Seen> seen{};
};

Storages::Storages(size_t max_views) : serial_(++serials), max_views_(max_views) {}

size_t Storages::EdgeHash::operator()(const GraphEdge& edge) const {
  return std::hash<int64_t>()((edge.producer * 0x9E3779B97F4A7C15) ^ (edge.consumer * 0xC2B2AE3D27D4EB4F) ^
                              edge.position);
}

// ---- in routines ----------------------------------------------------------------------------------------------------

Storages::ThisRun& Storages::this_run(uint64_t storages) {
  thread_local std::vector<ThisRun> runs;
  for (ThisRun& run : runs) {
    if (run.storages == storages) return run;
  }
  constexpr size_t kMost = 16;  // of tools that trace on one thread at a time
  if (runs.size() == kMost) runs.erase(runs.begin());
  return runs.emplace_back(ThisRun{storages});
}

bool Storages::before(Values& values, const Operator& op) {
  OpCall& call = values.call();
  ThisRun& run = this_run(serial_);
  run.node = kNoNode;
  run.seen.clear();
  {
    std::lock_guard lock(mutex_);
    if (!nodes_.contains(op.node)) return false;
    for (size_t i = 0; i < call.size(Side::kInputs); ++i) {
      int64_t members = 0;
      const bool known = each_tensor(operand(call, Side::kInputs, i), [&](const at::Tensor& tensor) {
        if (is_number(tensor)) return true;
        const Slot slot{op.node, static_cast<int64_t>(i), members++};
        return is_tracked(tensor) && look_up(tensor, slot, run);
      });
      if (!known) return false;
    }
  }
  for (const size_t position : op.written) {
    auto& written = values.local<Written>().tensors;
    each_tensor(operand(call, Side::kInputs, position), [&](const at::Tensor& tensor) {
      if (!is_number(tensor)) written.push_back(tensor);
      return true;
    });
  }
  run.node = op.node;
  return true;
}

// The mutex is held. Returns false if the graph grows.
bool Storages::look_up(const at::Tensor& tensor, const Slot& slot, ThisRun& run) {
  const auto& [consumer, position, member] = slot;
  Storage* storage = find(tensor);
  View* view = storage ? storage->find(tensor) : nullptr;
  if (!view && (!storage || storage->maker == kNoNode)) {  // from outside, as each batch and each gradient
    const auto outside = outside_.find(slot);
    if (outside == outside_.end()) return false;
    storage = find_or_add(tensor).get();
    view = &put(*storage, tensor, outside->second);
    view->outside = outside->second;
  }
  const void* address = tensor.unsafeGetTensorImpl();
  const NodeNumber maker = storage->maker_of(view, address);
  const auto is_known = [&](const GraphEdge& edge) { return edges_.contains(edge); };
  if (!each_edge(*storage, view, tensor, {maker, consumer, position}, is_known)) return false;
  Seen& seen = run.seen.emplace_back(Seen{address, tensor.storage().unsafeGetStorageImpl(), maker, 0, {}});
  if (view) {
    view->used = clock_++;
    seen.view = static_cast<size_t>(view - storage->views.begin());
  } else {
    seen.layout.emplace(tensor);
  }
  return true;
}

bool Storages::after(Values& values, const Operator& op) {
  OpCall& call = values.call();
  ThisRun& run = this_run(serial_);
  if (std::exchange(run.node, kNoNode) != op.node) return false;
  const auto each_result = [&](const auto& fn) {
    return std::all_of(op.returned.begin(), op.returned.end(), [&](size_t position) {
      return each_tensor(operand(call, Side::kOutputs, position), [&](const at::Tensor& tensor) {
        if (is_number(tensor)) return true;
        return is_tracked(tensor) && fn(tensor);
      });
    });
  };
  std::lock_guard lock(mutex_);
  if (!op.written.empty()) {
    for (const at::Tensor& tensor : values.local<Written>().tensors) write_here(tensor, tensor, op.node);
  }
  if (!each_result([](const at::Tensor&) { return true; })) {
    declined = reads_of(run);
    return false;
  }
  each_result([&](const at::Tensor& tensor) {
    const c10::StorageImpl* memory = tensor.storage().unsafeGetStorageImpl();
    const bool shares =
        std::any_of(run.seen.begin(), run.seen.end(), [&](const Seen& seen) { return seen.memory == memory; });
    make_here(tensor, tensor, op.node, shares ? reads_of(run, memory) : Reads());
    return true;
  });
  return true;
}

// The mutex is held.
Storages::Reads Storages::reads_of(const ThisRun& run, const c10::StorageImpl* memory) const {
  Reads reads;
  for (const Seen& seen : run.seen) {
    if (memory && seen.memory != memory) continue;
    const auto at = storages_.find(seen.memory);
    if (at == storages_.end()) continue;  // a reset
    const auto& views = at->second->views;
    if (!seen.layout && seen.view >= views.size()) continue;
    reads.push_back({seen.address, at->second, seen.layout ? *seen.layout : views[seen.view].layout, seen.maker});
  }
  return reads;
}

Storages::Reads Storages::declined_reads() { return std::exchange(declined, {}); }

// Calls `fn` for the edge of a tensor that is read, and for the writes to its memory that came after it was made.
template <class Layout, class Fn>
bool Storages::each_edge(const Storage& storage, const View* view, const Layout& layout, GraphEdge edge,
                         const Fn& fn) const {
  const NodeNumber outside = view ? view->outside : kNoNode;
  if (outside != kNoNode && edges_.contains({outside, edge.consumer, edge.position})) return true;
  if (!fn(edge)) return false;
  if (storage.writes.empty()) return true;
  const int64_t made = view ? view->time : -1;
  const MemoryLayout read(layout);
  for (const auto& [writer, written, time] : storage.writes) {
    if (time <= made || (!written.contains(read) && !read.contains(written))) continue;
    if (!fn(GraphEdge{writer, edge.consumer, edge.position})) return false;
  }
  return true;
}

// ---- from Python ----------------------------------------------------------------------------------------------------

void Storages::add_node(NodeNumber node) {
  std::lock_guard lock(mutex_);
  nodes_.insert(node);
}

bool Storages::is_new_outside(const at::Tensor& tensor) {
  const MemoryLayout layout(tensor);  // sizes may be those of a class in Python
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Storage>& storage = find_or_add(tensor);
  return storage->maker == kNoNode && !storage->find(layout);
}

std::pair<Storages::Read, std::vector<GraphEdge>> Storages::read(const at::Tensor& tensor, const Slot& slot,
                                                                 NodeNumber outside) {
  const auto& [consumer, position, member] = slot;
  MemoryLayout layout(tensor);
  std::lock_guard lock(mutex_);
  std::shared_ptr<Storage> storage = find_or_add(tensor);
  View* view = storage->find(layout);
  if (!view && storage->maker == kNoNode && outside != kNoNode) {
    view = &put(*storage, layout, outside);
    view->outside = outside_[slot] = outside;
  }
  if (view) view->used = clock_++;
  const void* address = tensor.unsafeGetTensorImpl();
  std::vector<GraphEdge> added;
  const NodeNumber maker = storage->maker_of(view, address);
  each_edge(*storage, view, layout, {maker, consumer, position}, [&](const GraphEdge& edge) {
    if (edge.producer != kNoNode) added.push_back(edge);
    return true;
  });
  edges_.insert(added.begin(), added.end());
  return {{address, std::move(storage), std::move(layout), maker}, std::move(added)};
}

void Storages::write(const at::Tensor& tensor, NodeNumber writer) {
  const MemoryLayout layout(tensor);
  std::lock_guard lock(mutex_);
  write_here(tensor, layout, writer);
}

void Storages::make(const at::Tensor& tensor, NodeNumber maker, const Reads& reads) {
  const MemoryLayout layout(tensor);
  std::lock_guard lock(mutex_);
  make_here(tensor, layout, maker, reads);
}

Storages::Storage* Storages::find(const at::Tensor& tensor) const {
  const auto at = storages_.find(tensor.storage().unsafeGetStorageImpl());
  return at == storages_.end() ? nullptr : at->second.get();
}

const std::shared_ptr<Storages::Storage>& Storages::find_or_add(const at::Tensor& tensor) {
  const c10::Storage& memory = tensor.storage();
  const auto known = storages_.find(memory.unsafeGetStorageImpl());
  if (known != storages_.end()) return known->second;
  if (storages_.size() >= limit_) {
    drop_dead();
    limit_ = std::max<size_t>(128, 2 * storages_.size());
  }
  if (spare_.empty()) {
    return storages_[memory.unsafeGetStorageImpl()] = std::make_shared<Storage>(memory.getWeakStorageImpl());
  }
  Known::node_type node = std::move(spare_.back());
  spare_.pop_back();
  node.key() = memory.unsafeGetStorageImpl();
  node.mapped()->become(memory.getWeakStorageImpl());
  return storages_.insert(std::move(node)).position->second;
}

// Most storages live for a few operators. Their entries are used again for the next ones.
void Storages::drop_dead() {
  constexpr size_t kMostSpare = 1024;
  for (auto at = storages_.begin(); at != storages_.end();) {
    const auto entry = at++;
    const std::shared_ptr<Storage>& storage = entry->second;
    if (!storage->alive.expired()) continue;
    if (spare_.size() == kMostSpare || storage.use_count() > 1) {  // some Read has it
      storages_.erase(entry);
      continue;
    }
    storage->alive.reset();
    spare_.push_back(storages_.extract(entry));
  }
}

template <class Layout>
Storages::View& Storages::put(Storage& storage, const Layout& layout, NodeNumber maker) {
  const int64_t now = clock_++;
  if (View* known = storage.find(layout)) {
    known->maker = maker;
    known->time = known->used = now;
    known->older.clear();
    return *known;
  }
  if (storage.views.size() == max_views_) {
    const auto oldest = std::min_element(storage.views.begin(), storage.views.end(),
                                         [](const View& a, const View& b) { return a.used < b.used; });
    if (oldest->maker != oldest->outside) storage.maker = oldest->maker;
    *oldest = {MemoryLayout(layout), maker, now, now};
    return *oldest;
  }
  return storage.views.emplace_back(View{MemoryLayout(layout), maker, now, now});
}

template <class Layout>
void Storages::write_here(const at::Tensor& tensor, const Layout& layout, NodeNumber writer) {
  Storage& storage = *find_or_add(tensor);
  const View& view = put(storage, layout, writer);
  std::erase_if(storage.writes, [&](const Storage::Write& write) { return write.writer == writer; });
  storage.writes.push_back({writer, view.layout, view.time});
}

template <class Layout>
void Storages::make_here(const at::Tensor& tensor, const Layout& layout, NodeNumber maker, const Reads& reads) {
  const std::shared_ptr<Storage>& storage = find_or_add(tensor);
  const void* address = tensor.unsafeGetTensorImpl();
  if (storage->views.empty()) storage->maker = maker;
  View& view = put(*storage, layout, maker);
  for (const Read& read : reads) {
    if (read.storage != storage || read.maker == kNoNode || read.address == address) continue;
    if (!(read.layout == view.layout)) continue;
    const auto at = std::find_if(view.older.begin(), view.older.end(),
                                 [&](const auto& older) { return older.first == read.address; });
    if (at == view.older.end()) {
      view.older.emplace_back(read.address, read.maker);
    } else {
      at->second = read.maker;
    }
  }
}

std::vector<std::pair<size_t, size_t>> Storages::sizes() const {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<size_t, size_t>> sizes;
  for (const auto& [memory, storage] : storages_) sizes.emplace_back(storage->views.size(), storage->writes.size());
  return sizes;
}

void Storages::reset() {
  std::lock_guard lock(mutex_);
  storages_.clear();
  spare_.clear();
  nodes_.clear();
  outside_.clear();
  edges_.clear();
  limit_ = 128;
}

}  // namespace amanda::tools::pytorch
