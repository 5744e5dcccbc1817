#include "graph_run.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "amanda/driver/engine.h"
#include "graph_gradient_call.h"
#include "kernels.h"
#include "operator_call.h"

namespace amanda::reference {
namespace {

/// One run: the value on each wire. Each run of a body is a run of its own.
class GraphRun {
 public:
  explicit GraphRun(size_t num_wires) : values_(num_wires) {}

  void give(const Wires& to, Operands values) {
    for (size_t i = 0; i < to.size(); ++i) values_[to[i]] = std::move(values[i]);
  }
  void give(const Wires& to, Gradients values) {
    for (size_t i = 0; i < to.size(); ++i) values_[to[i]] = std::move(values[i]);
  }
  Operands take(const Wires& wires) const {
    Operands operands;
    for (Wire wire : wires) operands.push_back(values_[wire].value());
    return operands;
  }
  void run(const Node& node);

 private:
  using Kind = Node::Kind;

  Gradients take_gradients(const Wires& wires) const {
    Gradients gradients;
    for (Wire wire : wires) gradients.push_back(wire == kNoWire ? std::nullopt : values_[wire]);
    return gradients;
  }
  void run_op(const Node& node);
  void run_gradient(const Node& node);
  void run_tap(const Node& node, OpCall& call);
  std::optional<Operand> sum(const Node& node) const;

  Gradients values_;
  // The objects that the taps of one execution share, by the operator's number.
  std::map<size_t, RunStatePtr> states_;
};

Operand filled_like(const Operand& operand, double number) {
  return map(std::get<Array>(operand), [number](double) { return number; });
}

void GraphRun::run(const Node& node) {
  switch (node.kind) {
    case Kind::kOp: return run_op(node);
    case Kind::kGradient: return run_gradient(node);
    case Kind::kOnes: return give(node.outputs, Gradients{filled_like(*values_[node.inputs[0]], 1.0)});
    case Kind::kSum: return give(node.outputs, Gradients{sum(node)});
    case Kind::kDefined: {
      const Gradients gradient = take_gradients({node.inputs[0]});
      return give(node.outputs, gradient[0] ? gradient : Gradients{filled_like(*values_[node.inputs[1]], 0.0)});
    }
    case Kind::kIf: {
      Operands inputs = take(node.inputs);
      const bool taken = std::get<Array>(inputs[0]).data().at(0) != 0;
      inputs.erase(inputs.begin());
      return give(node.outputs, run_program(*node.bodies[taken ? 0 : 1], std::move(inputs)));
    }
    case Kind::kLoop: {
      Operands carried = take(node.inputs);
      for (size_t i = 0; i < node.times; ++i) carried = run_program(*node.bodies[0], std::move(carried));
      return give(node.outputs, std::move(carried));
    }
  }
}

void GraphRun::run_op(const Node& node) {
  OperatorCall call(Driver::graph(), *node.op, node.location.id_of(*node.op), node.location.path, take(node.inputs),
                    take(node.results));
  if (!node.tap) {
    call.run({});  // operators that a kernel calls are not in the graph, and not shown
    return give(node.outputs, call.results());
  }
  run_tap(node, call);
  give(node.outputs, node.tap->point() == Point::kBefore ? call.inputs() : call.results());
}

void GraphRun::run_gradient(const Node& node) {
  GraphGradientCall call({*node.op, node.location, take(node.saved_inputs), take(node.saved_outputs)},
                         take_gradients(node.inputs), take_gradients(node.results));
  if (!node.tap) {
    call.run({});
    return give(node.outputs, call.grad_inputs());
  }
  run_tap(node, call);
  give(node.outputs, node.tap->point() == Point::kBefore ? call.grad_outputs() : call.grad_inputs());
}

void GraphRun::run_tap(const Node& node, OpCall& call) {
  RunStatePtr& state = states_[node.operator_number];
  if (!state) {
    auto forward = node.kind == Kind::kGradient ? states_.find(node.forward_number) : states_.end();
    state = std::make_shared<RunState>(forward == states_.end() ? nullptr : forward->second);
  }
  Engine::run(*node.tap, call, nullptr, state.get());
}

std::optional<Operand> GraphRun::sum(const Node& node) const {
  const std::optional<Operand>&a = values_[node.inputs[0]], &b = values_[node.inputs[1]];
  if (!a || !b) return a ? a : b;
  return zip(std::get<Array>(*a), std::get<Array>(*b), std::plus<>());
}

}  // namespace

Operands run_program(const Program& program, Operands inputs) {
  if (inputs.size() != program.inputs.size()) {
    throw std::invalid_argument(
        fmt::format("[graph] it takes {} inputs, not {}", program.inputs.size(), inputs.size()));
  }
  GraphRun run(program.num_wires);
  run.give(program.inputs, std::move(inputs));
  for (const Node& node : program.nodes) run.run(node);
  return run.take(program.outputs);
}

}  // namespace amanda::reference
