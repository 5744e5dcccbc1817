#include "values/unwritten.h"

#include <algorithm>
#include <memory>

#include "amanda/routine_capsule.h"
#include "torch_bindings.h"
#include "values/blocks.h"
#include "values/tensors.h"

namespace amanda::tools::pytorch {
namespace {

// The limit of pieces of one memory block. If there are more, all of it counts as written.
constexpr size_t kMostPieces = 4096;

bool is_followed(const at::Tensor& tensor) {
  return is_plain(tensor) && tensor.layout() == c10::kStrided && tensor.has_storage();
}

const c10::StorageImpl* key_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

uint32_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

// torch.tensor() allocates by an operator, and fills the memory itself. This key is excluded meanwhile.
bool is_filled_by_caller() {
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

/// Calls `fn(begin, end)` with the bytes that the tensor's elements are in, until it returns false. Returns false if it
/// did, or if there are more than kMostPieces.
template <class Fn>
bool each_piece(const at::Tensor& tensor, const Fn& fn) {
  if (tensor.numel() == 0) return true;
  Runs runs(tensor);
  const auto size = static_cast<int64_t>(tensor.element_size());
  size_t passed = 0;
  do {
    const int64_t begin = tensor.storage_offset() + runs.begin();
    if (passed++ == kMostPieces || !fn(begin * size, (begin + runs.length()) * size)) return false;
  } while (runs.next());
  return true;
}

/// Calls `fn(offset)` with the place of each element in the storage, in the order of a contiguous tensor, until it
/// returns false.
template <class Fn>
void each_element(const at::Tensor& tensor, const Fn& fn) {
  c10::SmallVector<int64_t, 8> index(tensor.dim(), 0);
  int64_t at = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (!fn(at)) return;
    for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
      at += tensor.stride(dim);
      if (++index[dim] < tensor.size(dim)) break;
      at -= tensor.stride(dim) * tensor.size(dim);
      index[dim] = 0;
    }
  }
}

}  // namespace

void WrittenBytes::add(int64_t begin, int64_t end) {
  auto at = ends_.upper_bound(begin);
  if (at != ends_.begin() && std::prev(at)->second >= begin) at = std::prev(at);
  for (; at != ends_.end() && at->first <= end; at = ends_.erase(at)) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
  }
  ends_.emplace(begin, end);
}

bool WrittenBytes::has(int64_t begin, int64_t end) const {
  const auto at = ends_.upper_bound(begin);
  return at != ends_.begin() && std::prev(at)->second >= end;
}

void UnwrittenMemory::allocate(const at::Tensor& tensor, OpId by) {
  if (!is_followed(tensor)) return;
  std::lock_guard lock(mutex_);
  allocate_here(tensor, by, 0);
}

void UnwrittenMemory::grow(const at::Tensor& tensor, OpId by) {
  if (!is_followed(tensor)) return;
  std::lock_guard lock(mutex_);
  if (known(tensor) == nullptr) allocate_here(tensor, by, tensor.storage().nbytes());
}

void UnwrittenMemory::write(const at::Tensor& tensor) {
  if (is_empty() || !is_followed(tensor)) return;
  std::lock_guard lock(mutex_);
  write_here(tensor);
}

void UnwrittenMemory::write_some(const at::Tensor& tensor) {
  if (is_empty() || !is_followed(tensor)) return;
  std::lock_guard lock(mutex_);
  if (Memory* memory = known(tensor)) note_write(*memory, tensor);
}

// If there are too many pieces, the rest stays without values: it is not certain that it has some.
void UnwrittenMemory::write_marked(const at::Tensor& tensor, const at::Tensor& marks) {
  if (is_empty() || !is_followed(tensor) || !marks.sizes().equals(tensor.sizes())) return;
  const at::Tensor marked = marks.contiguous();
  const bool* mark = marked.const_data_ptr<bool>();
  std::lock_guard lock(mutex_);
  Memory* memory = known(tensor);
  if (memory == nullptr) return;
  note_write(*memory, tensor);
  const auto size = static_cast<int64_t>(tensor.element_size());
  int64_t begin = 0, end = 0;
  each_element(tensor, [&](int64_t at) {
    if (!*mark++) return true;
    if (at * size != end) {
      if (begin != end) memory->written.add(begin, end);
      begin = at * size;
    }
    end = (at + 1) * size;
    return memory->written.intervals() < kMostPieces;
  });
  if (begin != end) memory->written.add(begin, end);
  drop_if_written(*memory, tensor);
}

void UnwrittenMemory::copy(const at::Tensor& from, const at::Tensor& to) {
  if (is_empty() || !is_followed(to)) return;
  std::lock_guard lock(mutex_);
  const std::optional<Unwritten> unwritten = is_followed(from) ? find_here(from) : std::nullopt;
  if (!unwritten) return write_here(to);
  Memory* memory = known(to);
  if (memory == nullptr && key_of(from) != key_of(to)) {
    allocate_here(to, unwritten->allocated_by, 0);
    memory = known(to);
  }
  if (memory == nullptr) return;
  memory->in_part |= unwritten->in_part;
  memory->version = std::max(memory->version, version_of(to));
}

std::optional<UnwrittenMemory::Unwritten> UnwrittenMemory::find(const at::Tensor& tensor) {
  if (is_empty() || !is_followed(tensor)) return std::nullopt;
  std::lock_guard lock(mutex_);
  return find_here(tensor);
}

bool UnwrittenMemory::has(const c10::IValue& operand) {
  return !is_empty() && !each_tensor(operand, [&](const at::Tensor& tensor) { return !find(tensor); });
}

void UnwrittenMemory::clear() {
  std::lock_guard lock(mutex_);
  memories_.clear();
  limit_ = 256;
  count_ = 0;
}

// The memory of the tensor. Null if it is written, as far as is known.
UnwrittenMemory::Memory* UnwrittenMemory::known(const at::Tensor& tensor) {
  const auto found = memories_.find(key_of(tensor));
  return found == memories_.end() ? nullptr : &found->second;
}

std::optional<UnwrittenMemory::Unwritten> UnwrittenMemory::find_here(const at::Tensor& tensor) {
  const Memory* memory = known(tensor);
  if (memory == nullptr) return std::nullopt;
  const bool may_be_written = !tensor.storage().resizable() || version_of(tensor) > memory->version;
  if (may_be_written) {
    drop(*memory);
    return std::nullopt;
  }
  if (each_piece(tensor, [&](int64_t begin, int64_t end) { return memory->written.has(begin, end); })) {
    return std::nullopt;
  }
  return Unwritten{memory->allocated_by, memory->in_part};
}

void UnwrittenMemory::allocate_here(const at::Tensor& tensor, OpId by, size_t written) {
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage(tensor.storage().getWeakStorageImpl());
  Memory memory{storage, by, version_of(tensor)};
  if (written > 0) {
    memory.in_part = true;
    memory.written.add(0, static_cast<int64_t>(written));
  }
  memories_.insert_or_assign(key_of(tensor), std::move(memory));
  drop_dead();
  count_ = memories_.size();
}

void UnwrittenMemory::write_here(const at::Tensor& tensor) {
  Memory* memory = known(tensor);
  if (memory == nullptr) return;
  note_write(*memory, tensor);
  const bool added = each_piece(tensor, [&](int64_t begin, int64_t end) {
    memory->written.add(begin, end);
    return memory->written.intervals() <= kMostPieces;
  });
  added ? drop_if_written(*memory, tensor) : drop(*memory);
}

void UnwrittenMemory::note_write(Memory& memory, const at::Tensor& tensor) {
  memory.in_part = true;
  memory.version = std::max(memory.version, version_of(tensor));
}

void UnwrittenMemory::drop_if_written(const Memory& memory, const at::Tensor& tensor) {
  if (memory.written.has(0, static_cast<int64_t>(tensor.storage().nbytes()))) drop(memory);
}

void UnwrittenMemory::drop(const Memory& memory) {
  memories_.erase(memory.storage._unsafe_get_target());
  count_ = memories_.size();
}

// A storage that is freed keeps its address until the weak reference is gone.
void UnwrittenMemory::drop_dead() {
  if (memories_.size() < limit_) return;
  std::erase_if(memories_, [](const auto& entry) { return entry.second.storage.expired(); });
  limit_ = std::max<size_t>(256, 2 * memories_.size());
}

void bind_unwritten(pybind11::module_& m) {
  namespace py = pybind11;
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  using Held = std::shared_ptr<UnwrittenMemory>;
  const auto each_output = [](Values& values, const auto& fn) {
    for (size_t i = 0; i < values.size(); ++i) {
      each_tensor(operand(values.call(), side_of(values.point()), values.position(i)), [&](const at::Tensor& tensor) {
        fn(tensor);
        return true;
      });
    }
  };
  py::class_<UnwrittenMemory, Held>(m, "UnwrittenMemory", "Which memory has no values yet.")
      .def(py::init<>())
      .def(
          "allocating",
          [each_output](const Held& memory, OpId by) {
            return python::capsule_of([=](Values& values) {
              if (is_filled_by_caller()) return;
              each_output(values, [&](const at::Tensor& tensor) { memory->allocate(tensor, by); });
            });
          },
          py::arg("op_id"), "A routine for `_core.NativeRoutine`, after an operator, with its results.")
      .def(
          "growing",
          [each_output](const Held& memory, OpId by) {
            return python::capsule_of([=](Values& values) {
              each_output(values, [&](const at::Tensor& tensor) { memory->grow(tensor, by); });
            });
          },
          py::arg("op_id"), "Before an operator, with the inputs that it will make larger.")
      .def(
          "writing",
          [](const Held& memory, std::vector<size_t> inputs) {
            return python::capsule_of([memory, inputs = std::move(inputs)](Values& values) {
              if (memory->is_empty()) return;
              for (const size_t position : inputs) {
                each_tensor(operand(values.call(), Side::kInputs, position), [&](const at::Tensor& tensor) {
                  memory->write(tensor);
                  return true;
                });
              }
            });
          },
          py::arg("inputs"), "After an operator that is shown the inputs that it has written.")
      .def(
          "writing_some",
          [](const Held& memory) {
            return python::capsule_of([memory](Values& values) {
              if (memory->is_empty()) return true;
              const c10::IValue& written = operand(values.call(), Side::kInputs, 0);
              if (!written.isTensor()) return true;
              const at::Tensor& tensor = written.toTensor();
              memory->write_some(tensor);  // first: find() takes a version that it does not know for a write of others
              return !tensor.is_cpu() || !memory->find(tensor);  // other devices would have to be waited for
            });
          },
          "After an operator that has written some elements of its first input. It declines where `mark` has to tell "
          "which.")
      .def("mark", &UnwrittenMemory::write_marked, py::arg("tensor"), py::arg("marks"), Unlocked(),
           "The elements that an operator has written.")
      .def(
          "copying",
          [](const Held& memory, size_t from, std::optional<size_t> into) {
            return python::capsule_of([=](Values& values) {
              if (memory->is_empty()) return;
              const c10::IValue& source = operand(values.call(), Side::kInputs, from);
              const c10::IValue& result =
                  into ? operand(values.call(), Side::kInputs, *into) : operand(values.call(), Side::kOutputs, 0);
              if (source.isTensor() && result.isTensor() && source.toTensor().defined()) {
                memory->copy(source.toTensor(), result.toTensor());
              }
            });
          },
          py::arg("source"), py::arg("into"),
          "After an operator that copies an input, into another one or into its result.")
      .def(
          "find",
          [](UnwrittenMemory& memory, const at::Tensor& tensor) -> std::optional<std::pair<OpId, bool>> {
            const auto found = memory.find(tensor);
            return found ? std::optional(std::pair(found->allocated_by, found->in_part)) : std::nullopt;
          },
          py::arg("tensor"), Unlocked(),
          "The operator that allocated it, and was some of it written? None: it has values, as far as is known.")
      .def("clear", &UnwrittenMemory::clear, Unlocked())
      .def_property_readonly("is_empty", &UnwrittenMemory::is_empty);
}

}  // namespace amanda::tools::pytorch
