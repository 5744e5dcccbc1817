// References to Python objects that may be released on any thread, with or without the interpreter lock.
#pragma once

#include <Python.h>

#include <utility>

namespace amanda::python {

/// True if the interpreter has ended, or ends now. On any thread.
bool interpreter_is_gone();

/// Decrements a reference count: now if this thread holds the interpreter lock, otherwise once a thread holds it.
/// Does nothing once the interpreter is gone.
void release(PyObject* object) noexcept;

/// Releases the queued objects. With the interpreter lock.
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
