#include "backward/grad_hooks.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <list>
#include <memory_resource>
#include <typeinfo>

#include "amanda/error.h"
#include "amanda/mutex.h"
#include "backward/node_override.h"
#include "base/python_hooks.h"
#include "coverage/census.h"
#include "thread/engine_threads.h"
#include "thread/guards.h"
#include "thread/keys.h"

namespace amanda::pytorch {

CurrentScopes observing_scopes() {
  if (c10::impl::tls_is_dispatch_key_excluded(keys().all)) return {};  // inside an operator
  if (thread_keys().unobserved != 0) return {};                        // a tool's own backward pass
  return current_scopes();
}

// ---- a node that runs -----------------------------------------------------------------------------------------------

namespace {

// With create_graph=True a node records nodes of its own: they are the forward operator's, too.
void bind_made_by(ScopeStack& scopes, const Ownership& owner, const NodeWindow& window,
                  const variable_list& grad_inputs) {
  const SomeTensors levels = all_levels(grad_inputs);
  bind_nodes(scopes, window.made(levels), owner.forward, owner.id, /*made_by_forward=*/false);
}

/// One owner's view of the execution.
struct Part {
  Part(ScopeStack& scopes, Node& node, const NodeType& type, const Ownership& whose)
      : owner(whose), call(node, type, owner), run(scopes, call) {}

  const Ownership& owner;
  NodeCall call;
  BackwardRun run;
};

// A node between its hooks. Tools of outer operators are around those of inner ones, as in the forward pass. What an
// owner's replacement wraps, inner owners included, runs only if the replacement runs it.
class RunningNode {
 public:
  RunningNode(CurrentScopes scopes, Node& node, const NodeType& type, const NodeRecord& record)
      : scopes_(std::move(scopes)), node_(node), type_(type), record_(record), owners_(record.owners()) {
    for (const Ownership& owner : owners_) {
      Part& part = parts_.emplace_back(*scopes_, node, type, owner);
      if (counts_calls()) note_shown(*scopes_, part.call, nullptr);
      if (!part.run.seen()) parts_.pop_back();
    }
  }
  RunningNode(const RunningNode&) = delete;
  RunningNode& operator=(const RunningNode&) = delete;

  variable_list begin(variable_list grad_outputs) {
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      NodeCall::Active active(part->call);
      part->call.take(std::move(grad_outputs));
      part->run.before();
      grad_outputs = part->call.give_grad_outputs();
      if (!part->run.replaces()) continue;
      replaced_ = true;
      inside_ = &part->owner - owners_.begin();
      parts_.erase(parts_.begin(), std::prev(part.base()));
      break;
    }
    return grad_outputs;
  }

  bool is_replaced() const { return replaced_; }
  bool expects_end() const {
    return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) {
      return part.run.expects_end() || (part.run.follows() && c10::GradMode::is_enabled());
    });
  }

  /// Runs the replacement, where the engine would run the node.
  variable_list operate(variable_list&& grad_outputs) {
    Part& part = parts_.front();
    NodeCall::Active active(part.call);
    part.call.take(std::move(grad_outputs));
    part.call.runs([&](variable_list&& gradients) { return run_inside(inside_, std::move(gradients)); });
    part.run.operate();
    return part.call.give_grad_inputs();
  }

  variable_list end(variable_list grad_inputs, const variable_list& grad_outputs) {
    bind_made(grad_inputs);
    for (Part& part : parts_) {
      NodeCall::Active active(part.call);
      part.call.take(grad_outputs);
      part.call.ran(grad_inputs);
      part.run.finish();
      grad_inputs = part.call.give_grad_inputs();
    }
    return grad_inputs;
  }

  bool is(const NodeRecord& record) const {
    return &record_ == &record && task_ == torch::autograd::get_current_graph_task_id();
  }

 private:
  // The node, and around it the tools of the first `owners` owners.
  variable_list run_inside(size_t owners, variable_list&& grad_outputs) {
    if (owners == 0) return run_node(node_, std::move(grad_outputs));
    NodeCall call(node_, type_, owners_[owners - 1]);
    call.runs([&](variable_list&& gradients) { return run_inside(owners - 1, std::move(gradients)); });
    NodeCall::Active active(call);
    call.take(std::move(grad_outputs));
    Engine::on_op(*scopes_, call);
    return call.give_grad_inputs();
  }

  void bind_made(const variable_list& grad_inputs) {
    if (!c10::GradMode::is_enabled()) return;
    for (size_t i = 0; i < inside_; ++i) {
      NodeCall site(node_, type_, owners_[i]);
      if (Engine::interest(*scopes_, site).follow) bind_made_by(*scopes_, owners_[i], made_, grad_inputs);
    }
    for (Part& part : parts_) {
      if (part.run.follows()) bind_made_by(*scopes_, part.owner, made_, grad_inputs);
    }
  }

  const CurrentScopes scopes_;
  Node& node_;
  const NodeType& type_;
  const NodeRecord& record_;
  const NodeRecord::Owners owners_;
  // Of the owners that have tools here. Most nodes have one, for which there is room. None moves: executions hold
  // references.
  alignas(Part) std::byte room_[sizeof(Part) + 2 * alignof(std::max_align_t)];
  std::pmr::monotonic_buffer_resource memory_{room_, sizeof room_};
  std::pmr::list<Part> parts_{&memory_};
  bool replaced_ = false;  // by the front part
  size_t inside_ = 0;      // the owners that the replacement is around
  int task_ = torch::autograd::get_current_graph_task_id();
  NodeWindow made_;
};

// Innermost last: a node may run a backward pass of its own. Nodes of a pass that failed are left over.
thread_local std::vector<std::unique_ptr<RunningNode>>* running = nullptr;
struct AtThreadsEnd {
  ~AtThreadsEnd() {
    if (running->empty()) delete std::exchange(running, nullptr);  // else a tool's Python objects: too late for them
  }
};

void add_running(std::unique_ptr<RunningNode> node) {
  if (!running) {
    running = new std::vector<std::unique_ptr<RunningNode>>;
    static thread_local const AtThreadsEnd freed;
  }
  running->push_back(std::move(node));
}

std::unique_ptr<RunningNode> take_running(const NodeRecord& record) {
  if (!running) return nullptr;
  auto found = std::find_if(running->rbegin(), running->rend(), [&](const auto& node) { return node->is(record); });
  if (found == running->rend()) return nullptr;
  std::unique_ptr<RunningNode> node = std::move(*found);
  const auto first = std::prev(found.base());
  // Let go of outside the list: that may run code of a tool's, which comes here again.
  const std::vector<std::unique_ptr<RunningNode>> left(std::make_move_iterator(first),
                                                       std::make_move_iterator(running->end()));
  running->erase(first, running->end());
  return node;
}

// The engine catches std::exception. Past anything else it would not put its thread's state back, or, on a thread of
// its own, end the program.
template <class Fn>
variable_list with_std_errors(const Fn& fn) {
  try {
    return fn();
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    if (!std::current_exception()) throw;  // no exception: the thread is being ended
    std::throw_with_nested(
        Error("[backward] a routine threw what is no std::exception, and PyTorch's engine carries nothing else: throw "
              "a std::exception (what was thrown is nested in this error)"));
  }
}

// Errors reach Python through threads and frames that know only Python's own.
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

// Compiled autograd asks each hook what it is, and refuses hooks that do not answer. Ours are not a part of the
// compiled graph: there, backward operators are not seen. (The method became const in some minor: one of the two
// overrides.)
#define AMANDA_NOT_COMPILED                                         \
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) {} \
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const {}

class AfterNode final : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterNode(std::shared_ptr<NodeRecord> record) : record_(std::move(record)) {}

  variable_list operator()(const variable_list& grad_inputs, const variable_list& grad_outputs) override {
    const std::unique_ptr<RunningNode> node = take_running(*record_);
    if (!node) return grad_inputs;
    return with_python_errors([&] { return node->end(grad_inputs, grad_outputs); });
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
    // Most often both are in place already. (It is too late only for other threads that run this very node.)
    if (node->is_replaced()) override_apply(node_, &run_replacement);
    if (node->expects_end()) ensure_post_hook(node_, record_);
    if (node->is_replaced() || node->expects_end()) add_running(std::move(node));
    return edited;
  }

  Node& node_;  // which has this hook
  const NodeType& type_;
  std::shared_ptr<NodeRecord> record_;
};

std::shared_ptr<NodeRecord> find_record(Node& node) {
  for (const auto& hook : node.pre_hooks()) {
    const auto& one = *hook;  // the class is final: comparing types does, and costs a tenth of a cast
    if (typeid(one) == typeid(BeforeNode)) return static_cast<const BeforeNode&>(one).record();
  }
  return nullptr;
}

// Where the engine would run the node. Other threads, and passes in which the tools are not active, get the original.
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

// Several threads may use one leaf: its node is to get one record. The lock covers the list of hooks and nothing else:
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

// Existing ownership is kept: leaves the tools out that see the node already. False: no other tool is left.
bool restrict_to_new_tools(Ownership& owner, const NodeRecord::Owners& owners) {
  if (owners.empty()) return true;
  std::vector<SightingPtr> known;
  for (const Ownership& other : owners) known.push_back(other.forward->seen_by);
  SightingPtr left = Engine::without(owner.forward->seen_by, known);
  if (!left) return false;
  if (left != owner.forward->seen_by) {
    auto forward = std::make_shared<ForwardRun>(*owner.forward);
    forward->seen_by = std::move(left);
    owner.forward = std::move(forward);
  }
  return true;
}

}  // namespace

bool has_running_nodes() { return running && !running->empty(); }
void forget_running_nodes() { std::exchange(*running, {}); }  // as above

// ---- records --------------------------------------------------------------------------------------------------------

Mutex& NodeRecord::mutex() const {
  static auto& locks = *new std::array<Mutex, 64>;  // threads may outlive static objects
  return locks[reinterpret_cast<uintptr_t>(this) / sizeof(NodeRecord) % locks.size()];
}

bool NodeRecord::add(Ownership owner) {
  // A leaf's node may live as long as the program, under DDP for instance.
  Owners over;  // destroyed outside the lock: they may hold Python objects
  std::lock_guard lock(mutex());
  const auto first_over = std::stable_partition(
      owners_.begin(), owners_.end(), [](const Ownership& known) { return !Engine::is_over(*known.forward->seen_by); });
  std::move(first_over, owners_.end(), std::back_inserter(over));
  owners_.erase(first_over, owners_.end());
  if (!restrict_to_new_tools(owner, owners_)) return false;
  owners_.push_back(std::move(owner));
  return true;
}

bool NodeRecord::claim_post_hook() {
  std::lock_guard lock(mutex());
  return !std::exchange(has_post_hook_, true);
}

NodeRecord::Owners NodeRecord::owners() const {
  std::lock_guard lock(mutex());
  return owners_;
}

Engine::Interest attach_hooks(ScopeStack& scopes, Node& node, const NodeType& type, Ownership owner) {
  if (const std::shared_ptr<NodeRecord> known = find_record_of(node, type)) {
    if (!restrict_to_new_tools(owner, known->owners())) return {};
  }
  NodeCall site(node, type, owner);
  const Engine::Interest wanted = Engine::interest(scopes, site);
  if (!wanted.any() && !counts_calls()) return wanted;  // counted by the hook
  publish_scopes_now();
  const std::shared_ptr<NodeRecord> record = record_of(node, type);
  if (record->add(std::move(owner)) && wanted.after) ensure_post_hook(node, record);
  return wanted;
}

}  // namespace amanda::pytorch
