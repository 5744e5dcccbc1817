// The tools in force for a graph, as an object that drivers use as a key.
#pragma once

#include <memory>
#include <vector>

#include "amanda/driver/graph.h"
#include "visibility.h"

namespace amanda {

class ScopeStack;

/// A toolset's scopes, kept alive, and their stack. The stack is null if one of the scopes is gone.
class OpenToolset {
 public:
  explicit OpenToolset(const Toolset& toolset);

  explicit operator bool() const { return stack_ != nullptr; }
  const ScopeStack& stack() const { return *stack_; }
  ToolBits inside() const { return inside_; }  // tools that were inside one of their operators

 private:
  std::vector<std::shared_ptr<ScopeState>> alive_;
  std::shared_ptr<ScopeStack> stack_;
  ToolBits inside_ = 0;
};

}  // namespace amanda
