// The backward pass: nodes from the newest to the oldest, each shown to the core as a backward operator.
#include "amanda/driver/backward.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <stdexcept>
#include <utility>

#include "amanda/driver/engine.h"
#include "amanda/reference/gradient.h"
#include "gradient_call.h"
#include "kernels.h"
#include "tape.h"
#include "thread_state.h"

namespace amanda::reference {
namespace {

/// `owners`: the number of forward operators, counted from the innermost, to which the node must still be shown. The
/// outermost one is first.
Gradients run_node(const GradientNode& node, size_t owners, Gradients grad_outputs, NodesRun how) {
  ScopeStack* scopes = this_thread.observing();
  if (owners == 0 || !scopes) return node.run(grad_outputs);
  const GradientNode::Owner& owner = node.owners[owners - 1];
  auto inner = [&](const Gradients& given) { return run_node(node, owners - 1, given, how); };

  if (how == NodesRun::kInCore) {
    GradientCall call(node, owner, std::move(grad_outputs), inner);
    Engine::on_op(*scopes, call);
    return std::move(call.grad_inputs());
  }
  std::optional<Gradients> results;
  GradientCall call(node, owner, std::move(grad_outputs),
                    [&](const Gradients& given) { return results ? *results : inner(given); });
  const HookNeeds interest = Backward::hook_needs(*scopes, call);
  if (!interest.any()) return inner(call.grad_outputs());
  BackwardRun hooks(*scopes, call);
  const bool begins = interest.before || interest.replace || interest.pending;
  if (begins) hooks.before();
  if (begins && hooks.replaces()) {
    hooks.operate();
    results = call.grad_inputs();
  } else {
    results = inner(call.grad_outputs());
  }
  if (!begins) hooks.before();  // a framework need not call back before a node if nothing runs there
  if (!hooks.expects_end()) return *std::move(results);
  hooks.finish();
  return std::move(call.grad_inputs());
}

/// Gradients of gradients are not recorded.
class InBackward {
 public:
  InBackward() : before_(std::exchange(this_thread.in_backward, true)) {}
  ~InBackward() { this_thread.in_backward = before_; }

 private:
  bool before_;
};

}  // namespace

void backward(const Array& result, const Array& gradient, NodesRun how) {
  const GradientEdge& root = result.gradient_state()->made_by;
  if (!root.node) throw std::invalid_argument("[tape] backward() starts at the result of an operator, on the tape");
  if (gradient.shape() != result.shape()) {
    throw std::invalid_argument(fmt::format("[tape] a gradient of shape {} for a result of shape {}",
                                            to_string(gradient.shape()), to_string(result.shape())));
  }
  struct Pending {
    std::shared_ptr<GradientNode> node;
    Gradients grad_outputs;
  };
  // A node's users are all newer: once it is the newest one left, its gradients are complete.
  std::map<uint64_t, Pending, std::greater<>> pending;
  auto send = [&](const GradientEdge& edge, std::optional<Operand> gradient) {
    if (!edge.node) return;
    auto [at, added] = pending.try_emplace(edge.node->number);
    if (added) at->second = {edge.node, Gradients(edge.node->output_shapes.size())};
    std::optional<Operand>& sum = at->second.grad_outputs[edge.position];
    if (sum && gradient) {
      sum = zip(std::get<Array>(*sum), std::get<Array>(*gradient), std::plus<>());
    } else if (gradient) {
      sum = std::move(gradient);
    }
  };

  InBackward no_recording;
  send(root, gradient);
  while (!pending.empty()) {
    Pending next = std::move(pending.extract(pending.begin()).mapped());
    const GradientNode& node = *next.node;
    Gradients grad_inputs = run_node(node, node.owners.size(), std::move(next.grad_outputs), how);
    for (size_t i = 0; i < grad_inputs.size(); ++i) send(node.next[i], std::move(grad_inputs[i]));
  }
}

}  // namespace amanda::reference
