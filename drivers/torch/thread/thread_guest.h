// Our data in a thread's state, which PyTorch copies to other threads.
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>

#include <memory>
#include <string>
#include <utility>

#include "base/port.h"

namespace amanda::pytorch {

/// The autograd engine and torch.jit.fork give their threads a copy of the caller's ThreadLocalState, which has one
/// extensible part: a table of Python objects by name. A guest is an entry of that table without a Python object; no
/// other code reads it. A copy may outlive the scope that created the guest.
struct Guest : c10::SafePyObject {
  Guest() : SafePyObject(nullptr, nullptr) {}
};

/// The guest of that name.
template <class T>
class ThreadGuest {
 public:
  explicit ThreadGuest(std::string name) : name_(std::move(name)) {}

  /// This thread's guest. Null if there is none.
  T* get() const {
    using at::impl::ThreadLocalPythonObjects;
    return ThreadLocalPythonObjects::contains(name_) ? static_cast<T*>(ThreadLocalPythonObjects::get(name_).get())
                                                     : nullptr;
  }
  std::shared_ptr<T> share() const {
    using at::impl::ThreadLocalPythonObjects;
    if (!ThreadLocalPythonObjects::contains(name_)) return nullptr;
    return std::static_pointer_cast<T>(ThreadLocalPythonObjects::get(name_));
  }

  /// Null removes it.
  void set(std::shared_ptr<T> guest) const {
    using at::impl::ThreadLocalPythonObjects;
    if (guest) {
      ThreadLocalPythonObjects::set(name_, std::move(guest));
    } else if (ThreadLocalPythonObjects::contains(name_)) {
      port::erase_thread_object(name_);
    }
  }

 private:
  const std::string name_;
};

}  // namespace amanda::pytorch
