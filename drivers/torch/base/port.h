// Everything that differs between the supported torch minors (2.11 to 2.14).
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11
#error "Amanda's PyTorch driver needs torch 2.11 or later"
#endif

namespace amanda::pytorch::port {

// A node is held by a shared_ptr up to 2.12, by an intrusive_ptr from 2.13 on.
using NodePtr = decltype(torch::autograd::Edge::function);
inline constexpr bool kSharedNodes = std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>;
using WeakNodePtr = std::conditional_t<kSharedNodes, std::weak_ptr<torch::autograd::Node>,
                                       c10::weak_intrusive_ptr<torch::autograd::Node>>;

template <class T, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (kSharedNodes) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

/// True if this thread runs a backward operator.
inline bool inside_backward() { return static_cast<bool>(torch::autograd::get_current_node()); }

/// Removes this thread's object of that name, which there must be. Up to 2.12 an entry stays, which is null.
inline void erase_thread_object(const std::string& name) {
#if TORCH_VERSION_MINOR >= 13
  at::impl::ThreadLocalPythonObjects::erase(name);
#else
  at::impl::ThreadLocalPythonObjects::set(name, nullptr);
#endif
}

/// The profiler that is on in the whole process or else on this thread; null if there is none. It is owned only
/// from 2.14 on, and there only that of the process. `State` is PyTorch's ProfilerStateBase: a template, because few
/// files need its header.
template <class State>
std::shared_ptr<State> active_profiler() {
  const auto unowned = [](State* state) { return std::shared_ptr<State>(std::shared_ptr<void>(), state); };
#if TORCH_VERSION_MINOR >= 14
  auto global = State::getGlobal();
  return global ? global : unowned(State::getTLS());
#else
  return unowned(State::get());
#endif
}

inline constexpr std::string_view kNameSpace =
    "pytorch/" C10_STRINGIZE(TORCH_VERSION_MAJOR) "." C10_STRINGIZE(TORCH_VERSION_MINOR) "/eager";

}  // namespace amanda::pytorch::port
