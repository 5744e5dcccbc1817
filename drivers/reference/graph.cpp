#include "amanda/reference/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "amanda/engine.h"
#include "amanda/reference/call.h"
#include "operator_call.h"
#include "place_hash.h"
#include "thread_state.h"

namespace amanda::reference {

Graph::Wires Graph::new_wires(size_t count) {
  Wires wires(count);
  std::iota(wires.begin(), wires.end(), num_wires_);
  num_wires_ += count;
  return wires;
}

Graph::Wire Graph::input() { return inputs_.emplace_back(new_wires(1)[0]); }

Graph::Wires Graph::add(std::string_view name, Wires inputs, const std::string& node_name) {
  const Operator& op = find_operator(name);
  if (op.in_place) throw std::invalid_argument(fmt::format("[graph] {} works in place; a wire has one value", name));
  if (inputs.size() != op.info.inputs.size()) {
    throw std::invalid_argument(
        fmt::format("[graph] {} takes {} inputs, not {}", name, op.info.inputs.size(), inputs.size()));
  }
  if (std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.name == node_name; })) {
    throw std::invalid_argument(fmt::format("[graph] there is a node '{}' already", node_name));
  }
  Wires outputs = new_wires(op.info.outputs.size());
  nodes_.push_back({&op, node_name, std::move(inputs), outputs, nullptr});
  return outputs;
}

Operands Graph::run(Operands given) const {
  if (given.size() != inputs_.size()) {
    throw std::invalid_argument(fmt::format("[graph] it takes {} inputs, not {}", inputs_.size(), given.size()));
  }
  Operands values(num_wires_);
  for (size_t i = 0; i < given.size(); ++i) values[inputs_[i]] = std::move(given[i]);
  for (const Node& node : nodes_) {
    Operands operands;
    for (Wire wire : node.inputs) operands.push_back(values[wire]);
    Operands results;
    if (node.plan) {
      results = run_tap(node, std::move(operands));
    } else {
      OperatorCall call(Driver::graph(), *node.op, extended(1, node.name), node.name, std::move(operands));
      call.run({});  // what is inside a node was not in the graph: not observed
      results = std::move(call.results());
    }
    for (size_t i = 0; i < results.size(); ++i) values[node.outputs[i]] = std::move(results[i]);
  }
  Operands results;
  for (Wire wire : outputs_) results.push_back(values[wire]);
  return results;
}

// A tap's operands are the operator's inputs, followed by its results if it comes after the operator.
Operands Graph::run_tap(const Node& node, Operands operands) {
  Operands results(operands.begin() + node.op->info.inputs.size(), operands.end());
  operands.resize(node.op->info.inputs.size());
  OperatorCall call(Driver::graph(), *node.op, extended(1, node.name), node.name, std::move(operands),
                    std::move(results));
  Engine::run(*node.plan, node.point, call);
  return node.point == Point::kBefore ? call.inputs() : std::move(call.results());
}

std::vector<std::string> Graph::node_names() const {
  static constexpr const char* kMarks[] = {"<", "=", ">"};
  std::vector<std::string> names;
  for (const Node& node : nodes_) names.push_back(node.plan ? node.name + kMarks[size_t(node.point)] : node.name);
  return names;
}

}  // namespace amanda::reference
