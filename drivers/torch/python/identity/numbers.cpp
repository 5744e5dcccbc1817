#include "python/identity/numbers.h"

#include <torch/csrc/autograd/python_variable.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "amanda/base/mutex.h"
#include "base/lifetime.h"
#include "base/python_hooks.h"
#include "python/identity/tag_table.h"

namespace amanda::python {

namespace {

// Kept for the life of the process.
PyTypeObject* parameter_type = nullptr;
PyTypeObject* tensor_type = nullptr;
TagTable& tags = *new TagTable;  // threads may outlive static objects
std::atomic<uint64_t> last_number{0};

// Numbered tensors: their addresses, and the numbers of those that died since the last query.
struct Numbered {
  Mutex mutex;
  std::unordered_map<uint64_t, const c10::TensorImpl*> alive;
  std::vector<uint64_t> dead;
  bool any_told = false;  // by the last query
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

// Py_REFCNT is 0 while the object is being destroyed. The object keeps the tensor alive, and is only destroyed with the
// interpreter lock.
at::Tensor held_by_python(const pytorch::Lifetime& lifetime) {
  const PyGILState_STATE state = PyGILState_Ensure();
  at::Tensor held = lifetime.if_alive([](c10::TensorImpl& tensor) {
    auto* object = reinterpret_cast<PyObject*>(tensor.pyobj_slot()->load_pyobj());
    return object && Py_REFCNT(object) > 0 ? THPVariable_Unpack(object) : at::Tensor();
  });
  PyGILState_Release(state);
  return held;
}

// nn.Parameter(tensor of a subclass) has that subclass, and a mark in its __dict__. Any other way to check could run
// the subclass's code.
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

[[gnu::hot]] uint64_t tag(const c10::TensorImpl* tensor, PyObject* object) {
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

uint64_t assign_number(const at::Tensor& tensor, bool counts) {
  const uint64_t number = ++last_number;
  set_tag(tensor, number << 1 | static_cast<uint64_t>(counts));
  return number;
}

void clear_number(uint64_t number) {
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
  numbered.any_told = !numbered.dead.empty();
  return std::exchange(numbered.dead, {});
}

bool has_dead_numbers() {
  std::lock_guard lock(numbered.mutex);
  return numbered.any_told || !numbered.dead.empty();
}

}  // namespace amanda::python
