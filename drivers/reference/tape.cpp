#include "tape.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <stdexcept>

#include "amanda/reference/gradient.h"
#include "kernels.h"
#include "place_hash.h"
#include "thread_state.h"

namespace amanda::reference {
namespace {

std::atomic<uint64_t> next_number{1};
thread_local Watch* innermost = nullptr;

std::shared_ptr<GradientNode> make_node(GradientNode node) {
  node.number = next_number++;
  auto made = std::make_shared<GradientNode>(std::move(node));
  Watch::tell(made);
  return made;
}

std::shared_ptr<GradientNode> accumulate_node(const Array& leaf) {
  auto rule = [leaf](const Gradients& in) -> Gradients {
    std::optional<Array>& sum = leaf.gradient_state()->gradient;
    const Array& added = std::get<Array>(*in[0]);
    sum = sum ? zip(*sum, added, std::plus<>()) : added.copy();
    return {};
  };
  return make_node({accumulate_type(), rule, {}, {}, {leaf.shape()}, 0, {}});
}

GradientEdge edge_to(const Array& array) {
  GradientState& state = *array.gradient_state();
  if (!state.is_leaf) return state.made_by;
  auto node = state.accumulate.lock();
  if (!node) state.accumulate = node = accumulate_node(array);
  return {node, 0};
}

}  // namespace

Gradients GradientNode::run(const Gradients& grad_outputs) const {
  const OpInfo& info = operator_of(type).info;
  if (this_thread.listener) this_thread.listener(info);
  const bool none = std::none_of(grad_outputs.begin(), grad_outputs.end(), [](auto& grad) { return grad.has_value(); });
  if (none) return Gradients(next.size());
  Gradients grad_inputs = rule(grad_outputs);
  if (grad_inputs.size() != next.size()) {
    throw std::logic_error(
        fmt::format("[tape] {} gave {} gradients for {} arrays", info.name, grad_inputs.size(), next.size()));
  }
  for (size_t i = 0; i < next.size(); ++i) {
    if (!next[i].node) grad_inputs[i].reset();
  }
  return grad_inputs;
}

void record(const Operator& op, const Operands& inputs, Operands& results) {
  if (!op.differentiate || !this_thread.recording()) return;
  const std::vector<Array> from = arrays(inputs);
  if (std::none_of(from.begin(), from.end(), requires_gradient)) return;
  GradientNode node{op.gradient_type, op.differentiate(inputs, results), {}, {}, {}, 0, {}};
  for (const Array& array : from) {
    node.next.push_back(edge_to(array));
    node.input_shapes.push_back(array.shape());
  }
  for (const Operand& result : results) node.output_shapes.push_back(std::get<Array>(result).shape());
  const auto made = make_node(std::move(node));
  for (size_t i = 0; i < results.size(); ++i) {
    auto state = std::make_shared<GradientState>();
    state->made_by = {made, i};
    results[i] = std::get<Array>(results[i]).with_gradient(std::move(state));
  }
}

void take_gradient(const Array& target, const Array& result) {
  *target.gradient_state() = GradientState(*result.gradient_state());
}

Operand straight_through(const Operand& value, const Operand& other) {
  auto through = [](const Array& array, const Array& replaced) {
    return array.shape() == replaced.shape() ? array.with_gradient_of(replaced) : array.reshaped(array.shape());
  };
  if (const auto* array = std::get_if<Array>(&value)) return through(*array, std::get<Array>(other));
  const auto* list = std::get_if<std::vector<Array>>(&value);
  if (!list) return value;
  const auto& replaced = std::get<std::vector<Array>>(other);
  std::vector<Array> arrays;
  for (size_t i = 0; i < list->size(); ++i) {
    const Array& array = (*list)[i];
    arrays.push_back(i < replaced.size() ? through(array, replaced[i]) : array.reshaped(array.shape()));
  }
  return arrays;
}

// ---- which operator made a node -------------------------------------------------------------------------------------

Watch::Watch() : outer_(innermost) { innermost = this; }
Watch::~Watch() { innermost = outer_; }

void Watch::tell(const std::shared_ptr<GradientNode>& made) {
  for (Watch* watch = innermost; watch; watch = watch->outer_) watch->nodes_.push_back(made);
}

// A node's id: the forward operator, the node's name, its number among those of that name, and the number of gradients
// that it computes. That number differs between runs of concat, and tools have selected positions.
void Watch::bind(ForwardRun run) const {
  const auto shared = std::make_shared<const ForwardRun>(std::move(run));
  std::map<OpType, int> count;
  for (const auto& node : nodes_) {
    const std::string label =
        fmt::format("{}.{}/{}", operator_of(node->type).info.name, count[node->type]++, node->next.size());
    node->owners.push_back({shared, extended(shared->id, label)});
  }
}

std::shared_ptr<GradientState> new_gradient_state() { return std::make_shared<GradientState>(); }

// ---- what programs call ---------------------------------------------------------------------------------------------

Array leaf(Array array) {
  if (array.gradient_state()->made_by.node) throw std::invalid_argument("[tape] an operator's result is no leaf");
  array.gradient_state()->is_leaf = true;
  return array;
}

bool requires_gradient(const Array& array) {
  return array.gradient_state()->is_leaf || array.gradient_state()->made_by.node;
}

std::optional<Array> gradient(const Array& leaf) { return leaf.gradient_state()->gradient; }

void clear_gradient(const Array& leaf) { leaf.gradient_state()->gradient.reset(); }

}  // namespace amanda::reference
