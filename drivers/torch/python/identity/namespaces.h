// Code that runs in namespaces which are not those of imported modules.
#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>

namespace amanda::python {

// NOTE: [namespaces of frames] Ids contain the __name__ of each frame's globals. Raw paths contain the address of the
// globals instead, which takes one load. It stands for the name where the globals are those of an imported module. Any
// other dict (of exec() or types.FunctionType) may be renamed, or die and leave its address to one with another name.
// No event reports that. So in frames of code that has run in such a dict, the name is looked up each time.

/// Notes that the code runs in these globals. With the interpreter lock.
void note_namespace(PyCodeObject* code, PyObject* globals);
/// The code object at this address has died.
void forget_namespaces(uintptr_t code);

/// The number of times that code was found that runs in other namespaces. May be called without the interpreter lock,
/// like those below.
inline std::atomic<uint64_t> free_codes_found{0};
bool is_free_code(const PyCodeObject* code);
inline bool is_free(const PyCodeObject* code) {
  return free_codes_found.load(std::memory_order_acquire) != 0 && is_free_code(code);
}
/// The hash of the globals' name. 0 if the name is no text.
uint64_t hash_of_name(PyObject* globals);

/// The place of a frame, as an even number: the instruction, and the globals.
inline uint64_t place_in(uint64_t instruction, const PyObject* globals) {
  return instruction + (reinterpret_cast<uint64_t>(globals) << 20);  // no two of one code are equal
}

}  // namespace amanda::python
