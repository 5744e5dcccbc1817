// Deaths of the Python objects whose addresses are part of raw paths, and the epochs that these deaths end.
#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace amanda::python {

enum class Watch {
  kAddress,  // results found by its address become invalid: the death starts a new epoch
  kPlain,    // a module without state and submodules: see is_reborn()
};

/// Watches an object until it dies. Returns false if the object does not support weak references. With the interpreter
/// lock, like all functions below.
///
/// Deaths are handled without running Python code: a signal handler could run there, and its exception would be lost.
bool watch(PyObject* object, Watch kind);

/// Addresses of watched objects that died since the last call.
std::vector<uint64_t> dead_objects();
/// True if dead_objects() would return any, or if tables may still hold those that it returned the last time.
bool has_dead_objects();

/// True if this is a module with state or submodules, at an address where a plain one died. All plain modules of one
/// class are equal, and often recreated, so their deaths end no epoch; but other modules at such an address must be
/// distinguished from them. May be called without the interpreter lock.
inline std::atomic<bool> any_graves{false};  // where plain modules died
bool is_reborn_in_grave(PyObject* module);
inline bool is_reborn(PyObject* module) {
  return any_graves.load(std::memory_order_acquire) && is_reborn_in_grave(module);
}

/// An address that may be part of a raw path has a new meaning: the raw paths of the last epoch become invalid. May be
/// called without the interpreter lock.
void start_new_epoch();

}  // namespace amanda::python
