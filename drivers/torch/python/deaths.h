// Deaths of the Python objects whose addresses stand in raw paths, and the epochs that they end.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

namespace amanda::python {

enum class Watch {
  kAddress,  // what was found by the address counts no more: the death starts a new epoch
  kPlain,    // a module without state and parts: see is_reborn()
};

/// Watches an object until it dies; false: it has no weak references. With the interpreter lock, as all below.
///
/// What the death causes is done without running Python code: a signal handler would run in there, and what it raises
/// would be lost.
bool watch(PyObject* object, Watch kind);

/// Addresses of watched objects that died since the last call.
std::vector<uint64_t> dead_objects();

/// Is this a module with state or parts, where a plain one died? All plain modules of one class are alike, and often
/// made anew: so their deaths end no epoch, but what takes such an address must be told from them. May be called
/// without the interpreter lock.
bool is_reborn(PyObject* module);

/// An address that may stand in a raw path is no longer what it was: the raw paths of the last epoch count no more. May
/// be called without the interpreter lock.
void start_new_epoch();

}  // namespace amanda::python
