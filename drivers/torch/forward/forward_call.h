// What all calls of forward operators share, with boxed operands or not.
#pragma once

#include <memory>
#include <vector>

#include "amanda/engine.h"
#include "backward/forward_operands.h"
#include "backward/node_window.h"
#include "base/op_types.h"
#include "base/stack_value.h"
#include "identity/identity.h"
#include "thread/guards.h"

namespace amanda::pytorch {

class ForwardCall : public OpCall {
 public:
  Backend& backend() const final;
  OpType type() const final { return record_.type; }
  Phase phase() const final { return Phase::kForward; }
  OpId id() final { return identity().id; }
  size_t size(Side side) const final;
  std::string detail(Detail which) final;
  bool records() const final { return RoutineState::program_records_now(); }
  uint64_t gradient_mask() const final;

  const OpRecord& record() const { return record_; }
  /// Does a result share memory with an argument it may be a view of?
  virtual bool result_is_view() const = 0;
  /// Is an argument that is no tensor a tracer's symbol?
  virtual bool has_symbols() const = 0;
  /// Before it runs: will a result share memory with the operand at `position`, as the program passed it?
  virtual bool is_viewed(size_t position) = 0;
  /// A routine or an analysis raised: where the operator has run, its effect on the program is completed.
  virtual void abandon() noexcept = 0;
  /// As they are now; what is returned is valid until the next call.
  virtual c10::ArrayRef<OperandTensor> argument_tensors() const = 0;
  virtual c10::ArrayRef<OperandTensor> result_tensors() const = 0;

 protected:
  /// What the program passed where a tool put something else.
  struct EditedInput {
    size_t position;
    c10::IValue input;
  };

  explicit ForwardCall(const OpRecord& record, Identity identity = {})
      : record_(record), identity_(std::move(identity)) {}
  ~ForwardCall() = default;

  virtual std::shared_ptr<ForwardOperands> operands_now() const = 0;  // after the run

  const Identity& identity();
  void remember_results();  // for the identities of the operators that use them

  /// Gives the backward operators that were made to those who see them. `written`: what the operator wrote to and does
  /// not return. Without `operands`, those of operands_now() are taken if an analysis turns out to be pending.
  bool bind_made(ScopeStack& scopes, const NodeWindow& window, const std::vector<c10::IValue>& written,
                 const std::vector<EditedInput>& edited, std::shared_ptr<ForwardOperands> operands,
                 const SubscriptionPtr& seen_by, RunSource& runs);

  const OpRecord& record_;
  Identity identity_;  // worked out when first asked for
};

}  // namespace amanda::pytorch
