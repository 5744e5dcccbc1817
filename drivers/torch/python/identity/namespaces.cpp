#include "python/identity/namespaces.h"

#include "python/identity/tag_table.h"

namespace amanda::python {
namespace {

TagTable& free_codes = *new TagTable;  // threads may outlive static objects

PyObject* interned_name() {
  static PyObject* const name = PyUnicode_InternFromString("__name__");
  return name;
}

// True if the globals are those of the module that is imported by their name. Globals without a name cannot be
// confused, so the result is true.
bool are_a_modules(PyObject* globals) {
  PyObject* name = PyDict_GetItemWithError(globals, interned_name());
  if (!name || !PyUnicode_CheckExact(name)) return true;
  PyObject* modules = PyImport_GetModuleDict();  // PyImport_GetModule() would wait for an import
  PyObject* module = modules && PyDict_Check(modules) ? PyDict_GetItemWithError(modules, name) : nullptr;
  return module && PyModule_Check(module) && PyModule_GetDict(module) == globals;
}

}  // namespace

void note_namespace(PyCodeObject* code, PyObject* globals) {
  const bool ordinary = are_a_modules(globals);
  PyErr_Clear();
  if (ordinary || free_codes.find(code)) return;
  free_codes.set(code, 1);
  free_codes_found.fetch_add(1, std::memory_order_release);
}

void forget_namespaces(uintptr_t code) { free_codes.erase(reinterpret_cast<const void*>(code)); }

bool is_free_code(const PyCodeObject* code) { return free_codes.find(code) != 0; }

uint64_t hash_of_name(PyObject* globals) {
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* name = PyDict_GetItemWithError(globals, interned_name());
  const uint64_t hash = name && PyUnicode_CheckExact(name) ? static_cast<uint64_t>(PyObject_Hash(name)) : 0;
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(state);
  return hash;
}

}  // namespace amanda::python
