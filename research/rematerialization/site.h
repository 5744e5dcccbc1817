// Operators at their places in a program, and the reasons why their results cannot be computed again.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace amanda {
class OpContext;
}

namespace amanda::tools::rematerialization {

// Compared by their addresses.
inline constexpr char kOutside[] = "parameter, input, or made without gradients";
inline constexpr char kInPlace[] = "changed in place";
inline constexpr char kRandom[] = "random";
inline constexpr char kInputsGone[] = "inputs are gone or changed";
inline constexpr char kNotPlain[] = "not a dense tensor on the CPU";
inline constexpr char kReplaced[] = "edited or replaced by another tool";
inline constexpr char kForeign[] = "not an operator of aten";
inline constexpr char kAliases[] = "shares memory with an input";
inline constexpr char kUninitialized[] = "not initialized";

/// An operator at its place in a module, and what happened to its results.
struct Site {
  std::string op, module_path;
  std::optional<c10::OperatorHandle> handle;
  const char* kept_because = nullptr;      // why its results cannot be computed again; null if they can
  std::vector<size_t> written;             // positions of the inputs that it changes in place
  std::vector<size_t> running_statistics;  // positions of the inputs that batch normalization changes in training
  std::optional<size_t> training, dropout;
  bool random = false, always_trains = false;
  int64_t evicted = 0, evicted_bytes = 0, recomputed = 0, recompute_ns = 0;
};

/// The operator's site. None if the operator makes no values of its own.
std::optional<Site> site_of(OpContext& context);

}  // namespace amanda::tools::rematerialization
