// The operator new of Amanda's own libraries: each links one, by the linker's --wrap (cmake/lasting_new.cmake).
#include <cstddef>

#include "amanda/base/lasting.h"

extern "C" {

void* __real__Znwm(size_t size);  // NOLINT: the linker's name of the usual one

__attribute__((visibility("hidden"))) void* __wrap__Znwm(size_t size) {  // NOLINT
  if (__builtin_expect(amanda::Lasting::is_on(), false)) {
    if (void* memory = amanda::take_lasting(size)) return memory;
  }
  return __real__Znwm(size);
}
}
