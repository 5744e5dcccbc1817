// One backward operator, an autograd node that a forward operator created, as the core sees it.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

#include "amanda/base/pool.h"
#include "amanda/driver/engine.h"
#include "backward/forward_operands.h"
#include "base/node_types.h"

namespace amanda::pytorch {

using torch::autograd::Node;
using torch::autograd::variable_list;

/// One run of a forward operator, for its backward operators.
struct ForwardRun {
  SubscriptionPtr seen_by;
  OpType type;
  OpId id;
  uint64_t raw_path;
  std::shared_ptr<const ForwardOperands> operands;  // null if no analysis will need them
  mutable std::weak_ptr<RunState> run;              // set before a backward operator that asks can run
  std::weak_ptr<const Plan> plan{};                 // for a PlainBackwardRun
};

/// The forward operator of a node, and which of its backward operators the node is. (A node may belong to an inner and
/// to an outer operator, for tools that see one or the other.)
struct Ownership {
  std::shared_ptr<const ForwardRun> forward;
  OpId id;
  uint32_t number;  // as the BackwardBinding counts
  bool made_by_forward;
  RunStatePtr kept_run;  // while the node lives; null if not asked for, or for a leaf's node, which may outlive it
};

/// Runs the node's own code, and treats its results as the engine does: sums over broadcast dimensions, converts
/// dtypes.
variable_list run_node(Node& node, variable_list&& grad_outputs);

class NodeCall final : public OpCall, NoCopy {
 public:
  NodeCall(Node& node, const NodeType& type, const Ownership& owner) : node_(node), type_(type), owner_(owner) {}
  NodeCall(Node& node, const NodeType& type, const Ownership& owner, variable_list&& grad_outputs)
      : node_(node), type_(type), owner_(owner), grad_outputs_(std::move(grad_outputs)) {}

  Backend& backend() const override;
  OpType type() const override { return type_.type; }
  Phase phase() const override { return Phase::kBackward; }
  OpId id() override { return owner_.id; }
  OpType forward_type() const override { return owner_.forward->type; }
  OpId forward_id() override { return owner_.forward->id; }
  const Subscription* subscription() const override { return owner_.forward->seen_by.get(); }
  RunStatePtr run_state() const override { return owner_.forward->run.lock(); }
  bool made_by_forward() const override { return owner_.made_by_forward; }
  size_t size(Side side) const override;
  Value get(Side side, size_t position) override;
  size_t forward_size(Side side) const override;
  Value forward_get(Side side, size_t position) override;
  std::string detail(Detail which) override;

  void run(RunHints hints) override;
  void skip(RunHints hints) override;
  bool has_results() const override { return false; }  // the grad_outputs are kept, too
  void finish() override {}
  void set(Side side, size_t position, Value value) override;
  void commit() override;
  void discard() noexcept override {
    if (rest_) rest_->staged.clear();
  }
  uint64_t versions(Side side) const override;

  const NodeType& node_type() const { return type_; }
  const Ownership& owner() const { return owner_; }

  /// The source of results for run(): the node itself, or the engine, which has them already.
  using Original = std::function<variable_list(variable_list&&)>;
  void runs(Original original) { rest().original = std::move(original); }
  void ran(variable_list& grad_inputs) { ran_ = &grad_inputs; }  // run() moves them

  /// The result of get(), if that is a defined tensor, and not boxed. Else null.
  const at::Tensor* gradient(Side at, size_t position) const {
    const variable_list& gradients = at == Side::kOutputs ? grad_inputs_ : grad_outputs_;
    return position < gradients.size() && gradients[position].defined() ? &gradients[position] : nullptr;
  }
  void take(variable_list grad_outputs) { grad_outputs_ = std::move(grad_outputs); }
  variable_list give_grad_outputs() {
    forget_shown();
    return std::move(grad_outputs_);
  }
  variable_list give_grad_inputs() {
    forget_shown();
    grad_outputs_.clear();
    return std::move(grad_inputs_);
  }

  /// The innermost call of this thread on which actions or analyses run, with this type and id. Null if there is none.
  static NodeCall* current(OpType type, OpId id);
  /// Runs the node itself, or the operator that a replacement of it wraps, on other gradients.
  variable_list call_original(variable_list grad_outputs);

  /// While it exists, current() finds the call.
  class Active : NoCopy {
   public:
    explicit Active(NodeCall& call);
    ~Active();

   private:
    friend class NodeCall;
    NodeCall& call_;
    Active*& here_;  // this thread's innermost: to find it costs a call
    Active* outer_;
  };

 private:
  struct Staged {
    Side side;
    size_t position;
    at::Tensor value;
  };
  /// State that most calls do not need.
  struct Rest : Pooled<Rest> {
    using Shown = c10::SmallVector<c10::IValue, 2>;

    Original original;
    std::vector<Staged> staged;
    Shown shown[2];          // values to which get() returned references, by side
    Shown shown_forward[2];  // the same for forward_get()

    void forget_shown() {
      for (Shown& one : shown) one.clear();
    }
  };
  Rest& rest() {
    if (!rest_) rest_ = std::make_unique<Rest>();
    return *rest_;
  }
  // Otherwise AccumulateGrad would copy a gradient instead of taking it over.
  void forget_shown() {
    if (rest_) rest_->forget_shown();
  }
  variable_list& side(Side side) { return side == Side::kOutputs ? grad_inputs_ : grad_outputs_; }
  void check(Side side, size_t position, const at::Tensor& value) const;

  Node& node_;
  const NodeType& type_;
  const Ownership& owner_;
  variable_list grad_outputs_, grad_inputs_;
  variable_list* ran_ = nullptr;
  bool replaced_ = false;
  std::unique_ptr<Rest> rest_;  // null if not needed yet
};

}  // namespace amanda::pytorch
