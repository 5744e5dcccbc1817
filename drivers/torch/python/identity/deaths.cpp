#include "python/identity/deaths.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "amanda/base/mutex.h"
#include "base/python_hooks.h"
#include "python/identity/tag_table.h"

namespace amanda::python {
namespace {

struct Watched {
  PyObject* reference;  // owned, weak
  Watch kind;
};

// Under the interpreter lock.
std::unordered_map<const void*, Watched>& watched = *new std::unordered_map<const void*, Watched>;
std::unordered_map<PyObject*, const void*>& objects = *new std::unordered_map<PyObject*, const void*>;  // by reference
std::vector<uint64_t>& dead = *new std::vector<uint64_t>;
bool any_told = false;  // by the last query

// Addresses at which plain modules died. Read without a lock.
TagTable& graves = *new TagTable;
std::vector<const void*>& all_graves = *new std::vector<const void*>;
Mutex& graves_mutex = *new Mutex;

void bury(const void* address) {
  std::lock_guard lock(graves_mutex);
  if (graves.find(address)) return;
  graves.set(address, 1);
  all_graves.push_back(address);
  any_graves.store(true, std::memory_order_release);
}

PyObject* on_death(PyObject*, PyObject* reference) {
  const auto object = objects.find(reference);
  if (object == objects.end()) Py_RETURN_NONE;
  const void* address = object->second;
  const Watch kind = watched.at(address).kind;
  objects.erase(object);
  watched.erase(address);
  dead.push_back(reinterpret_cast<uint64_t>(address));
  if (kind == Watch::kPlain) {
    bury(address);
  } else {
    start_new_epoch();
  }
  Py_DECREF(reference);
  Py_RETURN_NONE;
}

PyObject* callback() {
  static PyMethodDef method{"on_death", &on_death, METH_O, nullptr};
  static PyObject* function = PyCFunction_New(&method, nullptr);
  return function;
}

bool holds_something(PyObject* attributes, const char* name) {
  PyObject* held = attributes ? PyDict_GetItemString(attributes, name) : nullptr;
  if (!held) return false;
  if (!PyDict_Check(held)) return true;
  PyObject *key, *value;
  for (Py_ssize_t i = 0; PyDict_Next(held, &i, &key, &value);) {
    if (value != Py_None) return true;
  }
  return false;
}

}  // namespace

bool watch(PyObject* object, Watch kind) {
  if (const auto known = watched.find(object); known != watched.end()) {
    if (kind == Watch::kAddress) known->second.kind = kind;
    return true;
  }
  PyObject* reference = PyWeakref_NewRef(object, callback());
  if (!reference) {
    PyErr_Clear();
    return false;
  }
  objects.emplace(reference, object);
  watched.emplace(object, Watched{reference, kind});
  if (kind == Watch::kAddress && any_graves.load() && graves.find(object)) start_new_epoch();
  return true;
}

bool has_dead_objects() { return any_told || !dead.empty(); }

std::vector<uint64_t> dead_objects() {
  any_told = !dead.empty();
  return std::exchange(dead, {});
}

bool is_reborn_in_grave(PyObject* module) {
  if (!graves.find(module)) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* attributes = PyObject_GenericGetDict(module, nullptr);
  const bool reborn = holds_something(attributes, "_parameters") || holds_something(attributes, "_buffers") ||
                      holds_something(attributes, "_modules");
  Py_XDECREF(attributes);
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(state);
  return reborn;
}

// In this order: at worst, a path that is still distinguished from a plain module's is resolved once more.
void start_new_epoch() {
  ++pytorch::python_hooks.epoch;
  std::lock_guard lock(graves_mutex);
  any_graves.store(false, std::memory_order_release);
  for (const void* address : all_graves) graves.erase(address);
  all_graves.clear();
}

}  // namespace amanda::python
