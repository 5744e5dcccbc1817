// The autograd nodes that one boxed call creates, until they are bound.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "amanda/driver/engine.h"
#include "backward/forward_operands.h"
#include "backward/node_window.h"
#include "base/op_types.h"

namespace amanda::pytorch {

/// Which nodes are the call's, and what their analyses need. See backward/node_window.h.
class BackwardWatch {
 public:
  /// The arguments of bind_backward(), while the nodes are not those that the program gets.
  struct Deferred final : RunSource {
    Deferred(ScopeStack& scopes, SubscriptionPtr seen_by, RunStatePtr run)
        : scopes(scopes), seen_by(std::move(seen_by)), run(std::move(run)) {}
    RunStatePtr run_state() override { return run; }

    ScopeStack& scopes;
    const SubscriptionPtr seen_by;
    const RunStatePtr run;
  };

  /// The nodes created from now on, by a call with these arguments.
  void begin(const OpRecord& record, c10::ArrayRef<c10::IValue> arguments);
  /// The nodes of a call that has run elsewhere.
  void begin(std::optional<NodeWindow> window) { window_ = std::move(window); }
  /// The operator runs again: only the nodes created from now on are the call's.
  void restart() {
    if (window_) window_.emplace();
  }
  /// Keeps them for analyses.
  void keep_inputs(c10::ArrayRef<c10::IValue> inputs);

  const std::optional<NodeWindow>& window() const { return window_; }  // without a value if no tool asks for nodes
  /// The operands that the operator writes to and does not return.
  const std::vector<c10::IValue>& written() const { return written_; }
  /// The operands that were kept, with the results; null if none were.
  std::shared_ptr<ForwardOperands> take_operands(c10::ArrayRef<c10::IValue> results);

  void defer(ScopeStack& scopes, const SubscriptionPtr& seen_by, RunSource& runs);
  std::optional<Deferred> take_deferred() { return std::exchange(deferred_, std::nullopt); }

 private:
  std::optional<NodeWindow> window_;
  std::shared_ptr<ForwardOperands> operands_;
  std::vector<c10::IValue> written_;
  std::optional<Deferred> deferred_;
};

}  // namespace amanda::pytorch
