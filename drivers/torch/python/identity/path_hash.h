// The parts of the hash of a call path, from the outermost frame inwards.
#pragma once

#include <Python.h>

#include <cstdint>

#include "base/hash.h"
#include "python/identity/deaths.h"

namespace amanda::python {

/// `place`: the result of place_in(). `name`: of the globals, if the code is free.
inline uint64_t with_place(uint64_t hash, uint64_t place, uint64_t name) {
  hash = pytorch::mix(hash, place);
  return name ? pytorch::mix(hash, name) : hash;
}

/// The module is combined with its class: modules without state or submodules are created and destroyed within one
/// epoch.
inline uint64_t with_module(uint64_t hash, PyObject* module, bool reborn) {
  hash = pytorch::mix(hash, reinterpret_cast<uint64_t>(module) ^ reinterpret_cast<uint64_t>(Py_TYPE(module)) << 16);
  return reborn ? pytorch::mix(hash, 1) : hash;
}

}  // namespace amanda::python
