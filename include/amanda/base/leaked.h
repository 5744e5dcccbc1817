// Objects that live as long as the process.
#pragma once

namespace amanda {

/// The process's object of type `T`, created on first use. It is never destroyed: threads may outlive static objects.
template <class T>
T& leaked() {
  static auto* object = new T;
  return *object;
}

}  // namespace amanda
