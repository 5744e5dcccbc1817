// The common part of calls of forward operators, with boxed operands or not.
#pragma once

#include <memory>
#include <vector>

#include "amanda/driver/engine.h"
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
  [[gnu::hot]] Phase phase() const final { return Phase::kForward; }
  OpId id() final { return identity().id; }
  [[gnu::hot]] size_t size(Side side) const final {
    return side == Side::kOutputs ? record_.info.outputs.size() : record_.info.inputs.size();
  }
  std::string detail(Detail which) final;
  bool records() const final { return RoutineState::program_records_now(); }
  uint64_t gradient_mask() const final;

  const OpRecord& record() const { return record_; }
  /// Called before the call: sets its place, which is known.
  void know(OpId id, uint64_t raw_path) {
    identity_.id = id;
    identity_.raw_path = raw_path;
  }
  /// Called before the call: sets its place.
  void begin_at(const RawPlace& raw) { raw_ = raw; }
  /// After the call: the id, if it was found by `raw`, which was known then; else 0.
  OpId id_found_by(const RawPlace& raw) const {
    return identity_.key == raw.key && identity_.epoch == raw.epoch ? identity_.id : 0;
  }
  /// True if a result shares memory with an argument that it may be a view of.
  virtual bool result_is_view() const = 0;
  /// True if its operands are on a stack, where they can be edited. Only run() then runs the operator on them.
  virtual bool is_boxed() const { return true; }
  /// True if an argument other than a tensor is a tracer's symbol.
  virtual bool has_symbols() const = 0;
  /// Called before it runs: true if a result will share memory with the operand at `position`, as the program passed
  /// it.
  virtual bool is_viewed(size_t position) = 0;
  /// Called when a routine or an analysis raised: if the operator has run, completes its effect on the program.
  virtual void abandon() noexcept = 0;
  /// The current tensors; valid until the next call.
  virtual c10::ArrayRef<OperandTensor> argument_tensors() const = 0;
  virtual c10::ArrayRef<OperandTensor> result_tensors() const = 0;
  /// The result of get() at that position, if that is a defined tensor and not boxed. Else null.
  virtual const at::Tensor* unboxed_tensor(Side /*side*/, size_t /*position*/) const { return nullptr; }

 protected:
  /// The program's value of an operand that a tool replaced.
  struct EditedInput {
    size_t position;
    c10::IValue input;
  };

  explicit ForwardCall(const OpRecord& record) : record_(record) {}
  ForwardCall(const OpRecord& record, const Identity& identity) : record_(record), identity_(identity) {}
  ~ForwardCall() = default;

  virtual std::shared_ptr<ForwardOperands> operands_now() const = 0;  // after the run

  const Identity& identity();
  /// The result of bind_backward() where no backward operator was created: true if nothing has to be kept for an
  /// analysis at the next run. If the next run creates some, operands_now() are used; an operator that writes has
  /// changed them by then.
  bool nothing_made() const { return record_.mutated.empty(); }
  void remember_results();  // for the ids of the operators that use them

  /// Assigns the created backward operators to the tools that see them. `written`: the operands that the operator wrote
  /// to and does not return. If `operands` is null, operands_now() is used if an analysis is still pending.
  bool bind_made(ScopeStack& scopes, const NodeWindow& window, const std::vector<c10::IValue>& written,
                 const std::vector<EditedInput>& edited, std::shared_ptr<ForwardOperands> operands,
                 const SubscriptionPtr& seen_by, RunSource& runs);

  const OpRecord& record_;
  Identity identity_;  // computed on first use
  RawPlace raw_;       // for that

 private:
  /// Returns references that keep their nodes alive.
  static std::vector<port::NodePtr> add_edited_leaves(NodeWindow::Made& made, const std::vector<EditedInput>& edited);
  static void connect(ForwardOperands& operands, const NodeWindow::Made& made);
};

}  // namespace amanda::pytorch
