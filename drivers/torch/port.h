// All that differs between the torch minors we build on (2.11 to 2.13).
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11
#error "Amanda's PyTorch driver needs torch 2.11 or later"
#endif

namespace amanda::pytorch::port {

/// Does this thread run a backward operator? (The node is a shared_ptr up to 2.12, an intrusive_ptr from 2.13.)
inline bool inside_backward() { return static_cast<bool>(torch::autograd::get_current_node()); }

inline constexpr std::string_view kNameSpace =
    "pytorch/" C10_STRINGIZE(TORCH_VERSION_MAJOR) "." C10_STRINGIZE(TORCH_VERSION_MINOR) "/eager";

}  // namespace amanda::pytorch::port
