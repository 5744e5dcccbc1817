// What of ours travels with a thread's state, to the threads that PyTorch gives a copy of it.
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>

#include <memory>
#include <string>
#include <utility>

namespace amanda::pytorch {

/// The engine, and torch.jit.fork, give their threads a copy of the caller's ThreadLocalState, and that has one place
/// for guests: a table of Python objects by name. Ours is none, and nobody looks into it: the pointer only travels. A
/// copy may outlive the scope that put it there.
template <class T>
class ThreadGuest {
 public:
  explicit ThreadGuest(std::string name) : name_(std::move(name)) {}

  /// This thread's; null: none.
  T* get() const {
    using at::impl::ThreadLocalPythonObjects;
    if (!ThreadLocalPythonObjects::contains(name_)) return nullptr;
    return reinterpret_cast<T*>(ThreadLocalPythonObjects::get(name_).get());
  }
  std::shared_ptr<T> share() const {
    using at::impl::ThreadLocalPythonObjects;
    if (!ThreadLocalPythonObjects::contains(name_)) return nullptr;
    const std::shared_ptr<c10::SafePyObject>& disguised = ThreadLocalPythonObjects::get(name_);
    return {disguised, reinterpret_cast<T*>(disguised.get())};
  }

  /// Null takes it away.
  void set(std::shared_ptr<T> guest) const {
    using at::impl::ThreadLocalPythonObjects;
    if (!guest) {
      if (ThreadLocalPythonObjects::contains(name_)) ThreadLocalPythonObjects::erase(name_);
      return;
    }
    auto* disguised = reinterpret_cast<c10::SafePyObject*>(guest.get());
    ThreadLocalPythonObjects::set(name_, std::shared_ptr<c10::SafePyObject>(std::move(guest), disguised));
  }

 private:
  const std::string name_;
};

}  // namespace amanda::pytorch
