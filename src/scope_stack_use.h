// Counts the current uses of a stack of scopes.
#pragma once

#include <memory>
#include <vector>

#include "scope_stack.h"

namespace amanda {

/// Counts a use of a stack by a thread that has it open, or that works on behalf of one. Keeps the stack and its scopes
/// alive.
class ScopeStackUse : NoCopy {
 public:
  using Owners = std::vector<std::shared_ptr<const void>>;

  /// `owners`: keep the scopes alive. The returned stack holds the use.
  static std::shared_ptr<ScopeStack> begin(std::shared_ptr<ScopeStack> stack, Owners owners);
  ScopeStackUse(std::shared_ptr<ScopeStack> stack, Owners owners);
  ~ScopeStackUse();
  static size_t count(const Tool& tool);  // uses of stacks with this tool

 private:
  const std::shared_ptr<ScopeStack> stack_;
  const Owners owners_;
};

}  // namespace amanda
