// References to Python objects that may be let go of on any thread, with or without the interpreter lock.
#pragma once

#include <Python.h>

#include <utility>

namespace amanda::python {

/// Decrements a reference count: now if this thread holds the interpreter lock, else as soon as one does.
/// Does nothing once the interpreter is gone.
void release(PyObject* object) noexcept;

/// Lets go of what was queued. With the interpreter lock.
void drain_released();

class PyRef {
 public:
  PyRef() = default;
  explicit PyRef(PyObject* owned) : object_(owned) {}
  PyRef(PyRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PyRef& operator=(PyRef&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~PyRef() { reset(); }

  void reset() noexcept { release(std::exchange(object_, nullptr)); }
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

}  // namespace amanda::python
