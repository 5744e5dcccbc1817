// What of ours travels with a thread's state, to the threads that PyTorch gives a copy of it.
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>

#include <memory>
#include <string>
#include <utility>

namespace amanda::pytorch {

/// What can travel: the engine, and torch.jit.fork, give their threads a copy of the caller's ThreadLocalState, and
/// that has one place for others, a table of Python objects by name. A guest is one that stands for no Python object;
/// nobody looks into it. A copy may outlive the scope that put it there.
struct Guest : c10::SafePyObject {
  Guest() : SafePyObject(nullptr, nullptr) {}
};

/// The guest of that name.
template <class T>
class ThreadGuest {
 public:
  explicit ThreadGuest(std::string name) : name_(std::move(name)) {}

  /// This thread's; null: none.
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

  /// Null takes it away.
  void set(std::shared_ptr<T> guest) const {
    using at::impl::ThreadLocalPythonObjects;
    if (guest) {
      ThreadLocalPythonObjects::set(name_, std::move(guest));
    } else if (ThreadLocalPythonObjects::contains(name_)) {
      ThreadLocalPythonObjects::erase(name_);
    }
  }

 private:
  const std::string name_;
};

}  // namespace amanda::pytorch
