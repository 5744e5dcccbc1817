#include "backward/grad_hooks.h"

#include <torch/csrc/autograd/function_hook.h>

#include <exception>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "amanda/error.h"
#include "amanda/mutex.h"
#include "backward/node_override.h"
#include "backward/node_record.h"
#include "backward/running_node.h"
#include "base/hash.h"
#include "base/python_hooks.h"
#include "coverage/coverage_counter.h"
#include "thread/engine_threads.h"
#include "thread/guards.h"
#include "thread/keys.h"

namespace amanda::pytorch {

CurrentScopes observing_scopes() {
  if (c10::impl::tls_is_dispatch_key_excluded(keys().all)) return {};  // inside an operator
  if (thread_keys().unobserved != 0) return {};                        // a tool's own backward pass
  return current_scopes();
}

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

// ---- hook objects ---------------------------------------------------------------------------------------------------

// With create_graph=True a node records nodes itself: these belong to the forward operator too.
void bind_made_by(const RunningNode& node, const variable_list& grad_inputs) {
  for (const Ownership* owner : node.followers()) {
    const SomeTensors levels = all_levels(grad_inputs);
    bind_nodes(node.scopes(), node.window().made(levels), owner->forward, owner->id, /*made_by_forward=*/false);
  }
}

// Compiled autograd calls this method of each hook, and refuses hooks without it. Our hooks are not part of the
// compiled graph: tools do not see backward operators there. (The method became const in a minor version: one of the
// two overrides.)
#define AMANDA_NOT_COMPILED                                         \
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) {} \
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const {}

class AfterNode final : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterNode(std::shared_ptr<NodeRecord> record) : record_(std::move(record)) {}

  variable_list operator()(const variable_list& grad_inputs, const variable_list& grad_outputs) override {
    const std::unique_ptr<RunningNode> node = take_running(*record_);
    if (!node) return grad_inputs;
    return with_python_errors([&] {
      bind_made_by(*node, grad_inputs);
      return node->end(grad_inputs, grad_outputs);
    });
  }
  AMANDA_NOT_COMPILED

 private:
  std::shared_ptr<NodeRecord> record_;
};

void ensure_post_hook(Node& node, const std::shared_ptr<NodeRecord>& record) {
  if (record->claim_post_hook()) node.add_post_hook(std::make_unique<AfterNode>(record));
}

variable_list run_replacement(Node& node, variable_list&& grad_outputs);

class BeforeNode final : public torch::autograd::FunctionPreHook {
 public:
  BeforeNode(Node& node, const NodeType& type, std::shared_ptr<NodeRecord> record)
      : node_(node), type_(type), record_(std::move(record)) {}

  variable_list operator()(const variable_list& grad_outputs) override {
    CurrentScopes scopes = observing_scopes();
    if (!scopes) return grad_outputs;
    return with_python_errors([&] { return begin(std::move(scopes), grad_outputs); });
  }
  AMANDA_NOT_COMPILED

  const std::shared_ptr<NodeRecord>& record() const { return record_; }

 private:
  variable_list begin(CurrentScopes scopes, const variable_list& grad_outputs) {
    auto node = std::make_unique<RunningNode>(std::move(scopes), node_, type_, *record_);
    variable_list edited = node->begin(grad_outputs);
    // Usually both are installed already. (It is too late only for other threads that are running this node.)
    if (node->is_replaced()) override_apply(node_, &run_replacement);
    if (node->expects_end()) ensure_post_hook(node_, record_);
    if (node->is_replaced() || node->expects_end()) add_running(std::move(node));
    return edited;
  }

  Node& node_;  // the hook's node
  const NodeType& type_;
  std::shared_ptr<NodeRecord> record_;
};

std::shared_ptr<NodeRecord> find_record(Node& node) {
  for (const auto& hook : node.pre_hooks()) {
    const auto& one = *hook;  // the class is final, so comparing types is enough, at a tenth of a cast's cost
    if (typeid(one) == typeid(BeforeNode)) return static_cast<const BeforeNode&>(one).record();
  }
  return nullptr;
}

// Called by the engine in place of the node's code. Other threads, and passes in which the tools are not active, get
// the original.
variable_list run_replacement(Node& node, variable_list&& grad_outputs) {
  const std::shared_ptr<NodeRecord> record = find_record(node);
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
std::unique_lock<Mutex> lock_hooks(const NodeType& type) {
  static auto* leaves = new Mutex;
  return type.accumulates ? std::unique_lock(*leaves) : std::unique_lock<Mutex>();
}

std::shared_ptr<NodeRecord> find_record_of(Node& node, const NodeType& type) {
  const auto lock = lock_hooks(type);
  return find_record(node);
}

std::shared_ptr<NodeRecord> record_of(Node& node, const NodeType& type) {
  const auto lock = lock_hooks(type);
  if (std::shared_ptr<NodeRecord> known = find_record(node)) return known;
  auto made = std::make_shared<NodeRecord>();
  node.add_pre_hook(std::make_unique<BeforeNode>(node, type, made));
  return made;
}

// Attaches the hooks that the owner's tools need on the node, and returns what they need. Existing ownership is kept:
// a leaf's node belongs to its first user, any other node to the innermost operator that the tool sees.
HookNeeds attach_hooks(ScopeStack& scopes, Node& node, const NodeType& type, Ownership owner) {
  if (const std::shared_ptr<NodeRecord> known = find_record_of(node, type)) {
    if (!restrict_to_new_tools(owner, known->owners())) return {};
  }
  NodeCall site(node, type, owner);
  const HookNeeds wanted = Backward::hook_needs(scopes, site);
  if (!wanted.any() && !counts_calls()) return wanted;  // counted by the hook
  publish_scopes_now();
  const std::shared_ptr<NodeRecord> record = record_of(node, type);
  if (record->add(std::move(owner)) && wanted.after) ensure_post_hook(node, record);
  return wanted;
}

}  // namespace

bool bind_nodes(ScopeStack& scopes, const NodeWindow::Made& made, const std::shared_ptr<const ForwardRun>& forward,
                OpId base, bool made_by_forward) {
  bool analysed = true;
  // The number of gradients is part of a backward operator's identity: `cat` of two and of three tensors at one place.
  auto id_of = [&](const Node& node, const NodeType& type, OpId within, uint64_t index) {
    return base == 0
               ? 0
               : mix(mix(mix(within, index), type.name_hash), uint64_t{node.num_inputs()} << 32 | node.num_outputs()) |
                     1;
  };
  c10::SmallVector<OpId, 8> ids;
  for (size_t i = 0; i < made.nodes.size(); ++i) {
    Node& node = *made.nodes[i];
    const NodeType& type = node_types().of(node);
    ids.push_back(id_of(node, type, base, i));
    analysed &= !attach_hooks(scopes, node, type, {forward, ids.back(), made_by_forward}).pending;
  }
  for (const NodeWindow::Leaf& leaf : made.leaves) {
    const NodeType& type = node_types().of(*leaf.accumulate);
    if (!type.accumulates) continue;
    const OpId id = id_of(*leaf.accumulate, type,
                          leaf.parent == NodeWindow::kOperand ? mix(base, leaf.parent) : ids[leaf.parent], leaf.edge);
    analysed &= !attach_hooks(scopes, *leaf.accumulate, type, {forward, id, false}).pending;
  }
  return analysed;
}

}  // namespace amanda::pytorch
