#include "backward/grad_hooks.h"

#include <torch/csrc/autograd/function_hook.h>

#include <exception>
#include <mutex>
#include <optional>
#include <typeinfo>
#include <utility>

#include "amanda/base/mutex.h"
#include "amanda/base/pool.h"
#include "amanda/error.h"
#include "backward/node_override.h"
#include "backward/node_record.h"
#include "backward/running_node.h"
#include "base/hash.h"
#include "base/python_hooks.h"
#include "coverage/coverage_counter.h"
#include "thread/engine_threads.h"
#include "thread/keys.h"

namespace amanda::pytorch {

namespace {

CurrentScopes observing_scopes(const ThreadKeys& thread) {
  if (thread.bits->excluded().has(keys().all)) return {};  // inside an operator
  if (thread.unobserved != 0) return {};                   // a tool's own backward pass
  return thread.scopes ? CurrentScopes(thread.scopes) : current_scopes();
}

}  // namespace

CurrentScopes observing_scopes() { return observing_scopes(thread_keys().with_torch_state()); }

namespace {

// The engine only catches std::exception. After any other exception it would not restore its thread's state; on a
// thread of its own it would end the program.
template <class Fn>
variable_list with_std_errors(const Fn& fn) {
  try {
    return fn();
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    if (!std::current_exception()) throw;  // no exception: the thread is ending
    std::throw_with_nested(
        Error("[backward] a routine threw what is no std::exception, and PyTorch's engine carries nothing else: throw "
              "a std::exception (what was thrown is nested in this error)"));
  }
}

// Errors reach Python through threads and frames that only handle Python's exceptions.
template <class Fn>
variable_list with_python_errors(const Fn& fn) {
  try {
    return with_std_errors(fn);
  } catch (const Error&) {
    if (python_hooks.rethrow) python_hooks.rethrow();
    throw;
  }
}

// Operators are caught here only if the pass was not started by execute(): see NOTE [backward passes]. The engine
// restores the thread's keys after each node.
void leave_operators_alone(const ThreadKeys& thread) {
  const bool caught = thread.bits->included().has_any(keys().both);
  if (C10_UNLIKELY(caught) && !counts_calls()) include_keys(KeyRole::kNone);
}

// The engine replaces the list that it passed to a hook by the list that the hook returns. It reads the passed list no
// more, whether the hook returns or throws, so that list may be moved. A copy would take an allocation for each node.
variable_list take_over(const variable_list& gradients) { return std::move(const_cast<variable_list&>(gradients)); }

// ---- hook objects ---------------------------------------------------------------------------------------------------

// With create_graph=True a node records nodes itself: these belong to the forward operator too.
void bind_made_by(const RunningNode& node, const variable_list& grad_inputs) {
  for (const Ownership* owner : node.followers()) {
    const SomeTensors levels = all_levels(grad_inputs);
    bind_nodes(node.scopes(), node.window().made(levels), owner->forward, owner->id, /*made_by_forward=*/false,
               nullptr);
  }
}

// Compiled autograd calls this method of each hook, and refuses hooks without it. Our hooks are not part of the
// compiled graph: tools do not see backward operators there. (The method became const in a minor version: one of the
// two overrides.)
#define AMANDA_NOT_COMPILED                                         \
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) {} \
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const {}

class AfterNode final : public torch::autograd::FunctionPostHook, public Pooled<AfterNode> {
 public:
  explicit AfterNode(const NodeRecord& record) : record_(record) {}

  variable_list operator()(const variable_list& grad_inputs, const variable_list& grad_outputs) override {
    const std::unique_ptr<RunningNode> node = take_running(record_);
    if (!node) return take_over(grad_inputs);
    return with_python_errors([&] {
      bind_made_by(*node, grad_inputs);
      return node->end(take_over(grad_inputs), grad_outputs);
    });
  }
  AMANDA_NOT_COMPILED

 private:
  const NodeRecord& record_;  // in the node's other hook
};

void ensure_post_hook(Node& node, NodeRecord& record) {
  if (record.claim_post_hook()) node.add_post_hook(std::make_unique<AfterNode>(record));
}

variable_list run_replacement(Node& node, variable_list&& grad_outputs);

class BeforeNode final : public torch::autograd::FunctionPreHook, public Pooled<BeforeNode> {
 public:
  template <class... Owner>
  BeforeNode(Node& node, const NodeType& type, const ThreadCalls& here, Owner&&... owner)
      : node_(node), type_(type), record_(here, std::forward<Owner>(owner)...) {}

  variable_list operator()(const variable_list& grad_outputs) override {
    const ThreadKeys& thread = thread_keys().with_torch_state();
    CurrentScopes scopes = observing_scopes(thread);
    if (!scopes) return take_over(grad_outputs);
    leave_operators_alone(thread);
    return with_python_errors([&] {
      std::optional<Ownership> copy;
      const Ownership* owner = counts_calls() ? nullptr : record_.only_owner(*thread.calls, type_.accumulates, copy);
      if (owner) {
        const PlainBackwardRun run(*scopes, owner->forward->plan, owner->number, owner->id);
        const bool followed = run.follows() && thread.autograd->get_grad_mode();
        if (run.is_idle() && !followed) return take_over(grad_outputs);
        if (run && !followed) return begin_plain(run, *thread.calls, *owner, grad_outputs);
      }
      return begin(std::move(scopes), grad_outputs);
    });
  }
  AMANDA_NOT_COMPILED

  NodeRecord& record() { return record_; }

 private:
  variable_list begin_plain(const PlainBackwardRun& run, ThreadCalls& here, const Ownership& owner,
                            const variable_list& grad_outputs) {
    NodeCall call(node_, type_, owner, take_over(grad_outputs));
    const NodeCall::Active active(call);
    run.before(here, call);
    return call.give_grad_outputs();
  }

  [[gnu::noinline]] variable_list begin(CurrentScopes scopes, const variable_list& grad_outputs) {
    auto node = std::make_unique<RunningNode>(std::move(scopes), node_, type_, record_);
    variable_list edited = node->begin(take_over(grad_outputs));
    // Usually both are installed already. (It is too late only for other threads that are running this node.)
    if (node->is_replaced()) override_apply(node_, &run_replacement);
    if (node->expects_end()) ensure_post_hook(node_, record_);
    if (node->is_replaced() || node->expects_end()) add_running(std::move(node));
    return edited;
  }

  Node& node_;  // the hook's node
  const NodeType& type_;
  NodeRecord record_;
};

inline NodeRecord* find_record(Node& node) {
  for (const auto& hook : node.pre_hooks()) {
    auto& one = *hook;  // the class is final, so comparing types is enough, at a tenth of a cast's cost
    if (typeid(one) == typeid(BeforeNode)) return &static_cast<BeforeNode&>(one).record();
  }
  return nullptr;
}

// Called by the engine in place of the node's code. Other threads, and passes in which the tools are not active, get
// the original.
variable_list run_replacement(Node& node, variable_list&& grad_outputs) {
  const NodeRecord* record = find_record(node);
  std::unique_ptr<RunningNode> running_node = record ? take_running(*record) : nullptr;
  if (!running_node || !running_node->is_replaced()) {
    if (running_node) add_running(std::move(running_node));
    return run_original(node, std::move(grad_outputs));
  }
  return with_python_errors([&] {
    variable_list grad_inputs = running_node->operate(std::move(grad_outputs));
    if (running_node->expects_end()) add_running(std::move(running_node));
    return grad_inputs;
  });
}

// Several threads may use one leaf, but its node must get only one record. The lock covers only the list of hooks:
// tools' code, and destructors that need the interpreter lock, run outside it.
std::unique_lock<Mutex> lock_leaves() {
  static auto* leaves = new Mutex;
  return std::unique_lock(*leaves);
}
inline std::unique_lock<Mutex> lock_hooks(const NodeType& type) {
  return type.accumulates ? lock_leaves() : std::unique_lock<Mutex>();
}

NodeRecord* find_record_of(Node& node, const NodeType& type) {
  const auto lock = lock_hooks(type);
  return find_record(node);
}

template <class... Owner>
NodeRecord& add_record(Node& node, const NodeType& type, const ThreadCalls& here, Owner&&... owner) {
  auto hook = std::make_unique<BeforeNode>(node, type, here, std::forward<Owner>(owner)...);
  NodeRecord& made = hook->record();
  node.add_pre_hook(std::move(hook));
  return made;
}

/// The record of the node. Null if the tools that saw this owner already see the node, through another owner.
NodeRecord* record_owner(Node& node, const NodeType& type, const ThreadCalls& here, Ownership owner) {
  NodeRecord* known;
  {
    const auto lock = lock_hooks(type);
    known = find_record(node);
    if (!known) return &add_record(node, type, here, std::move(owner));
  }
  return known->add(std::move(owner)) ? known : nullptr;
}

/// Attaches hooks to the nodes that one operator has created.
class Binder {
 public:
  Binder(ScopeStack& scopes, const NodeWindow::Made& made, const std::shared_ptr<const ForwardRun>& forward,
         RunSource* runs)
      : scopes_(scopes), made_(made), forward_(forward), runs_(runs), binding_(scopes, plan_of(runs)) {}

  /// Existing ownership is kept: a leaf's node belongs to its first user, any other node to the innermost operator that
  /// the tool sees.
  void bind(Node& node, const NodeType& type, OpId id, bool made_by_forward) {
    const uint32_t number = number_++;
    const HookNeeds* const needs = binding_.known(number, id);
    const bool keeps_run = needs && (needs->run || needs->pending);
    if (needs && !(keeps_run && type.accumulates) && bind_first(node, type, id, number, made_by_forward, *needs)) {
      analysed_ &= !needs->pending;
    } else {
      analysed_ &= !attach_hooks(node, type, {forward_, id, number, made_by_forward, nullptr}).pending;
    }
  }
  /// True if all their analyses have run.
  bool analysed() const { return analysed_; }

 private:
  static const Plan* plan_of(RunSource* runs) {
    const PlanPtr* plan = runs ? runs->plan() : nullptr;
    return plan ? plan->get() : nullptr;
  }

  // Returns false if the node has a record already.
  bool bind_first(Node& node, const NodeType& type, OpId id, uint32_t number, bool made_by_forward,
                  const HookNeeds& needs) {
    const auto lock = lock_hooks(type);
    if (C10_UNLIKELY(find_record(node) != nullptr)) return false;
    if (!needs.any() && !counts_calls()) return true;  // counted by the hook
    RunStatePtr run;
    if (C10_UNLIKELY(needs.run || needs.pending)) {
      run = run_of(*forward_);
      run_kept_ = true;
    }
    NodeRecord& record = add_record(node, type, here_, forward_, id, number, made_by_forward, std::move(run));
    if (needs.after) ensure_post_hook(node, record);
    return true;
  }

  RunStatePtr run_of(const ForwardRun& forward) const {
    RunStatePtr run = forward.run.lock();
    if (!run && runs_) forward.run = run = runs_->run_state();
    return run;
  }

  HookNeeds look_up(Node& node, const NodeType& type, const Ownership& owner, bool by_all_tools) {
    hold_nodes();
    NodeCall site(node, type, owner);
    return by_all_tools ? binding_.look_up(owner.number, site) : Backward::hook_needs(scopes_, site);
  }

  // A look-up may release plans, and with them a tool's objects, whose code might drop the graph.
  void hold_nodes() {
    if (!held_.empty()) return;
    for (Node* const node : made_.nodes) held_.push_back(node->getptr());
    for (const NodeWindow::Leaf& leaf : made_.leaves) held_.push_back(leaf.accumulate->getptr());
  }

  // Returns the hooks that the owner's tools need on the node.
  [[gnu::noinline]] HookNeeds attach_hooks(Node& node, const NodeType& type, Ownership owner) {
    NodeRecord* const known = find_record_of(node, type);
    if (known) {
      const NodeRecord::Owners* const own = known->own_owners(here_, type.accumulates);
      const NodeRecord::Owners copy = own ? NodeRecord::Owners() : known->owners();
      const NodeRecord::Owners& owners = own ? *own : copy;
      if (!restrict_to_new_tools(owner, owners)) {
        if (type.accumulates) {
          known->renew_run(owners, owner, [&] { return run_of(*owner.forward); });
          known->renew_plan(owner);
        }
        return {};
      }
    }
    const bool by_all_tools = owner.forward == forward_;
    const HookNeeds* const known_needs = by_all_tools ? binding_.known(owner.number, owner.id) : nullptr;
    const HookNeeds wanted = known_needs ? *known_needs : look_up(node, type, owner, by_all_tools);
    if (!wanted.any() && !counts_calls()) return wanted;  // counted by the hook
    if (wanted.run || wanted.pending) {
      RunStatePtr run = run_of(*owner.forward);
      if (!type.accumulates || !run_kept_) owner.kept_run = std::move(run);
      run_kept_ = true;
    }
    // Only a leaf's node can have got a record meanwhile.
    NodeRecord* const record = known || type.accumulates ? record_owner(node, type, here_, std::move(owner))
                                                         : &add_record(node, type, here_, std::move(owner));
    if (record && wanted.after) ensure_post_hook(node, *record);
    return wanted;
  }

  const ThreadCalls& here_ = *thread_keys().with_torch_state().calls;
  ScopeStack& scopes_;
  const NodeWindow::Made& made_;
  const std::shared_ptr<const ForwardRun>& forward_;
  RunSource* const runs_;  // null if the forward operator is over
  BackwardBinding binding_;
  uint32_t number_ = 0;
  bool analysed_ = true;
  bool run_kept_ = false;  // by a node, as long as the graph lives. A leaf's may live longer, under DDP for instance
  c10::SmallVector<port::NodePtr, 4> held_;
};

// The number of gradients is part of a backward operator's identity: `cat` of two and of three tensors at one place.
OpId id_of(const Node& node, const NodeType& type, OpId within, uint64_t index) {
  const uint64_t gradients = uint64_t{node.num_inputs()} << 32 | node.num_outputs();
  return mix(mix(mix(within, index), type.name_hash), gradients) | 1;
}

}  // namespace

bool bind_nodes(ScopeStack& scopes, const NodeWindow::Made& made, const std::shared_ptr<const ForwardRun>& forward,
                OpId base, bool made_by_forward, RunSource* runs) {
  Binder binder(scopes, made, forward, runs);
  c10::SmallVector<OpId, 8> ids(made.nodes.size());
  for (size_t i = 0; i < made.nodes.size(); ++i) {
    Node& node = *made.nodes[i];
    const NodeType& type = node_types().of(node);
    ids[i] = base == 0 ? 0 : id_of(node, type, base, i);
    binder.bind(node, type, ids[i], made_by_forward);
  }
  for (const NodeWindow::Leaf& leaf : made.leaves) {
    const NodeType& type = node_types().of(*leaf.accumulate);
    if (!type.accumulates) continue;
    const OpId within = leaf.parent == NodeWindow::kOperand ? mix(base, leaf.parent) : ids[leaf.parent];
    binder.bind(*leaf.accumulate, type, base == 0 ? 0 : id_of(*leaf.accumulate, type, within, leaf.edge), false);
  }
  return binder.analysed();
}

}  // namespace amanda::pytorch
