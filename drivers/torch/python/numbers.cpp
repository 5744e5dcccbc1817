#include "python/numbers.h"

#include <torch/csrc/autograd/python_variable.h>

#include <thread>
#include <unordered_map>
#include <utility>

#include "base/lifetime.h"
#include "base/python_hooks.h"

namespace amanda::python {

// ---- TagTable
// ---------------------------------------------------------------------------------------------------------

size_t TagTable::Slots::home(const void* object) const {
  return (reinterpret_cast<uint64_t>(object) >> 4) * 0x9E3779B97F4A7C15ull >> (64 - bits);
}

void TagTable::Slots::put(const void* object, uint64_t tag) {
  size_t i = home(object);
  while (slots[i].object.load(std::memory_order_relaxed)) i = next(i);
  slots[i].tag.store(tag, std::memory_order_relaxed);
  slots[i].object.store(object, std::memory_order_relaxed);
}

uint64_t TagTable::find(const void* object) const {
  while (true) {
    const uint64_t before = changes_.load(std::memory_order_acquire);
    const Slots* table = slots_.load(std::memory_order_acquire);
    if (!table) return 0;
    uint64_t tag = 0;
    size_t i = table->home(object);
    for (size_t looked = 0; looked < table->slots.size(); ++looked, i = table->next(i)) {  // no end amid a change
      const void* found = table->slots[i].object.load(std::memory_order_relaxed);
      if (found == object) tag = table->slots[i].tag.load(std::memory_order_relaxed);
      if (!found || found == object) break;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && changes_.load(std::memory_order_relaxed) == before) return tag;
    std::this_thread::yield();
  }
}

class TagTable::Change {
 public:
  explicit Change(TagTable& table) : changes_(table.changes_) {
    changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~Change() { changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

 private:
  std::atomic<uint64_t>& changes_;
};

void TagTable::set(const void* object, uint64_t tag) {
  erase(object);
  std::lock_guard lock(mutex_);
  if (all_.empty() || 2 * (size_ + 1) > all_.back()->slots.size()) grow();
  Change change(*this);
  all_.back()->put(object, tag);
  ++size_;
}

uint64_t TagTable::erase(const void* object) {
  std::lock_guard lock(mutex_);
  if (all_.empty()) return 0;
  Slots& table = *all_.back();
  size_t hole = table.home(object);
  while (table.slots[hole].object.load() != object) {
    if (!table.slots[hole].object.load()) return 0;
    hole = table.next(hole);
  }
  const uint64_t tag = table.slots[hole].tag.load();
  Change change(*this);
  --size_;
  // What follows moves up, unless it is at home already.
  const size_t mask = table.slots.size() - 1;
  for (size_t i = table.next(hole); table.slots[i].object.load(); i = table.next(i)) {
    const size_t home = table.home(table.slots[i].object.load());
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    table.slots[hole].object.store(table.slots[i].object.load(), std::memory_order_relaxed);
    table.slots[hole].tag.store(table.slots[i].tag.load(), std::memory_order_relaxed);
    hole = i;
  }
  table.slots[hole].object.store(nullptr, std::memory_order_relaxed);
  return tag;
}

void TagTable::grow() {
  constexpr int kFirstBits = 10;
  const Slots* outgrown = all_.empty() ? nullptr : all_.back().get();
  auto made = std::make_unique<Slots>(outgrown ? outgrown->bits + 1 : kFirstBits);
  if (outgrown) {
    for (const Slot& slot : outgrown->slots) {
      if (slot.object.load()) made->put(slot.object.load(), slot.tag.load());
    }
  }
  slots_.store(made.get(), std::memory_order_release);
  all_.push_back(std::move(made));
}

// ---- tags of tensors
// --------------------------------------------------------------------------------------------------

namespace {

// Kept for the life of the process, like the classes that they are.
PyTypeObject* parameter_type = nullptr;
PyTypeObject* tensor_type = nullptr;
TagTable& tags = *new TagTable;  // threads may outlive static objects
std::atomic<uint64_t> last_number{0};

// Of numbered tensors: where they are, and which have died since somebody asked.
struct Numbered {
  Mutex mutex;
  std::unordered_map<uint64_t, const c10::TensorImpl*> alive;
  std::vector<uint64_t> dead;
};
Numbered& numbered = *new Numbered;

// Before the tensor's memory is freed.
void died(const c10::TensorImpl* tensor) {
  const uint64_t number = tags.erase(tensor) >> 1;
  if (number == 0) return;
  std::lock_guard lock(numbered.mutex);
  numbered.alive.erase(number);
  numbered.dead.push_back(number);
}

void set_tag(const at::Tensor& tensor, uint64_t tag) {
  const c10::TensorImpl* address = tensor.unsafeGetTensorImpl();
  pytorch::Lifetime::of(tensor)->tell(&died);
  const uint64_t had = tags.find(address) >> 1;
  tags.set(address, tag);
  std::lock_guard lock(numbered.mutex);
  numbered.alive.erase(had);
  numbered.alive[tag >> 1] = address;
}

// Py_REFCNT is 0 while the object is being destroyed. What holds the tensor is the object, and that dies under the
// interpreter lock alone.
at::Tensor held_by_python(const pytorch::Lifetime& lifetime) {
  const PyGILState_STATE state = PyGILState_Ensure();
  at::Tensor held = lifetime.if_alive([](c10::TensorImpl& tensor) {
    auto* object = reinterpret_cast<PyObject*>(tensor.pyobj_slot()->load_pyobj());
    return object && Py_REFCNT(object) > 0 ? THPVariable_Unpack(object) : at::Tensor();
  });
  PyGILState_Release(state);
  return held;
}

// nn.Parameter(tensor of a subclass) is of that subclass, with a mark in its __dict__: its class's own code may run for
// any other way to ask.
bool is_marked(PyObject* object) {
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* attributes = PyObject_GenericGetDict(object, nullptr);
  PyObject* mark = attributes ? PyDict_GetItemString(attributes, "_is_param") : nullptr;
  const bool marked = mark && PyObject_IsTrue(mark) == 1;
  Py_XDECREF(attributes);
  PyErr_Clear();
  PyGILState_Release(state);
  return marked;
}

uint64_t tag(const c10::TensorImpl* tensor, PyObject* object) {
  const uint64_t known = tags.find(tensor);
  PyTypeObject* type = Py_TYPE(object);
  if (type == tensor_type || (known & 1)) return known;
  return known | (type == parameter_type || PyType_IsSubtype(type, parameter_type) || is_marked(object));
}

}  // namespace

void install_numbers(PyObject* parameter_class) {
  parameter_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(parameter_class));
  tensor_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(parameter_type->tp_base)));
  pytorch::python_hooks.tag = &tag;
  pytorch::python_hooks.held_by_python = &held_by_python;
}

uint64_t number_of(const at::Tensor& tensor) { return tags.find(tensor.unsafeGetTensorImpl()) >> 1; }

uint64_t give_number(const at::Tensor& tensor, bool counts) {
  const uint64_t number = ++last_number;
  set_tag(tensor, number << 1 | static_cast<uint64_t>(counts));
  return number;
}

void take_number(uint64_t number) {
  std::lock_guard lock(numbered.mutex);
  const auto found = numbered.alive.find(number);
  if (found == numbered.alive.end()) return;
  tags.erase(found->second);
  numbered.alive.erase(found);
}

void exchange_numbers(const at::Tensor& a, const at::Tensor& b) {
  const uint64_t tag_of_a = tags.erase(a.unsafeGetTensorImpl()), tag_of_b = tags.erase(b.unsafeGetTensorImpl());
  if (tag_of_b) set_tag(a, tag_of_b);
  if (tag_of_a) set_tag(b, tag_of_a);
}

std::vector<uint64_t> dead_numbers() {
  std::lock_guard lock(numbered.mutex);
  return std::exchange(numbered.dead, {});
}

}  // namespace amanda::python
