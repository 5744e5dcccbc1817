#include "amanda/reference/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "amanda/engine.h"
#include "amanda/reference/call.h"
#include "graph_node.h"
#include "kernels.h"
#include "thread_state.h"

namespace amanda::reference {

// ---- written down ---------------------------------------------------------------------------------------------------

Graph::Wires Graph::new_wires(size_t count) {
  Wires wires(count);
  std::iota(wires.begin(), wires.end(), num_wires_);
  num_wires_ += count;
  return wires;
}

Graph::Wires Graph::append(Node node, size_t outputs) {
  node.outputs = new_wires(outputs);
  nodes_.push_back(std::move(node));
  return nodes_.back().outputs;
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
  return append({.kind = Node::Kind::kOp, .op = &op, .name = node_name, .inputs = std::move(inputs)},
                op.info.outputs.size());
}

Graph::Wires Graph::add_if(Wire condition, Wires inputs, GraphPtr taken, GraphPtr other, const std::string& name) {
  const size_t count = taken->outputs_.size();
  inputs.insert(inputs.begin(), condition);
  return append({.kind = Node::Kind::kIf, .name = name, .inputs = std::move(inputs), .bodies = {taken, other}}, count);
}

Graph::Wires Graph::add_loop(size_t times, Wires carried, GraphPtr body, const std::string& name) {
  const size_t count = carried.size();
  return append(
      {.kind = Node::Kind::kLoop, .name = name, .inputs = std::move(carried), .bodies = {body}, .times = times}, count);
}

Graph::Wires Graph::gradients(Wire result, const Wires& of) {
  std::map<Wire, Wire> gradient;
  gradient[result] = append({.kind = Node::Kind::kSum, .name = "ones", .inputs = {result}}, 1)[0];
  for (size_t i = nodes_.size() - 1; i-- > 0;) {
    const Node node = nodes_[i];
    if (node.kind == Node::Kind::kGradient || node.kind == Node::Kind::kSum) continue;
    Wires inputs;
    for (Wire wire : node.outputs) inputs.push_back(gradient.contains(wire) ? gradient[wire] : kNone);
    if (std::all_of(inputs.begin(), inputs.end(), [](Wire wire) { return wire == kNone; })) continue;
    if (node.kind != Node::Kind::kOp || !node.op->differentiate)
      throw std::invalid_argument(fmt::format("[graph] no gradient flows through '{}'", node.name));
    inputs.insert(inputs.end(), node.inputs.begin(), node.inputs.end());
    inputs.insert(inputs.end(), node.outputs.begin(), node.outputs.end());
    const Wires made =
        append({.kind = Node::Kind::kGradient, .op = node.op, .name = node.name, .inputs = inputs, .forward = i},
               node.inputs.size());
    for (size_t at = 0; at < made.size(); ++at) {
      Wire& sum = gradient.try_emplace(node.inputs[at], kNone).first->second;
      sum =
          sum == kNone ? made[at] : append({.kind = Node::Kind::kSum, .name = "sum", .inputs = {sum, made[at]}}, 1)[0];
    }
  }
  Wires wanted;
  for (Wire wire : of) wanted.push_back(gradient.at(wire));
  return wanted;
}

// ---- run ------------------------------------------------------------------------------------------------------------

Operands Graph::run(Operands given) const {
  const ArtifactPtr made = is_front_ ? artifact() : nullptr;
  const Graph& now = made && made->lowered ? *static_cast<const Graph*>(made->lowered.get()) : *this;
  return now.run_as_it_is(std::move(given));
}

Operands Graph::run_as_it_is(Operands given) const {
  if (given.size() != inputs_.size()) {
    throw std::invalid_argument(fmt::format("[graph] it takes {} inputs, not {}", inputs_.size(), given.size()));
  }
  Gradients values(num_wires_);
  for (size_t i = 0; i < given.size(); ++i) values[inputs_[i]] = std::move(given[i]);
  using Kind = Node::Kind;
  auto slice = [&](const Wires& wires, size_t begin, size_t end) {
    Gradients some;
    for (size_t i = begin; i < end; ++i) some.push_back(wires[i] == kNone ? std::nullopt : values[wires[i]]);
    return some;
  };
  auto given_values = [&](const Wires& wires, size_t begin, size_t end) {
    Operands some;
    for (size_t i = begin; i < end; ++i) some.push_back(values[wires[i]].value());
    return some;
  };
  auto give = [&](const Node& node, auto&& results) {
    for (size_t i = 0; i < node.outputs.size(); ++i) values[node.outputs[i]] = std::move(results[i]);
  };
  std::map<std::string, RunState> states;  // of each forward node and its backward ones, in this run
  for (const Node& node : nodes_) {
    const Wires& in = node.inputs;
    const size_t grads = node.op ? node.op->info.outputs.size() : 0, ins = node.op ? node.op->info.inputs.size() : 0;
    switch (node.kind) {
      case Kind::kOp: {
        OperatorCall call(Driver::graph(), *node.op, node_place(1, node.name, *node.op), node.name,
                          given_values(in, 0, ins), given_values(in, ins, in.size()));
        if (node.tap) {
          Engine::run(*node.tap, call, nullptr, &states[node.name]);
        } else {
          call.run({});  // what is inside a node was not in the graph: not observed
        }
        give(node, node.tap && node.tap->point() == Point::kBefore ? Operands(call.inputs()) : call.results());
        break;
      }
      case Kind::kGradient: {
        const bool after = node.tap && node.tap->point() == Point::kAfter,
                   before = node.tap && !after && node.tap->point() == Point::kBefore;
        GradientNodeCall call(*node.op, node_place(1, node.name, *node.op),
                              after ? Gradients(grads) : slice(in, 0, grads),
                              after ? slice(in, 0, ins) : Gradients(ins),
                              before || after ? Operands{} : given_values(in, grads, grads + ins),
                              before || after ? Operands{} : given_values(in, grads + ins, in.size()));
        if (node.tap) {
          Engine::run(*node.tap, call, nullptr, &states[node.name]);
        } else {
          if (this_thread.listener) this_thread.listener(operator_of(node.op->gradient_type).info);
          call.run({});
        }
        give(node, before ? call.grad_outputs() : call.grad_inputs());
        break;
      }
      case Kind::kSum: {
        if (in.size() == 1) {
          values[node.outputs[0]] = map(std::get<Array>(*values[in[0]]), [](double) { return 1.0; });
        } else {
          const auto &a = values[in[0]], &b = values[in[1]];
          values[node.outputs[0]] =
              a && b ? std::optional<Operand>(zip(std::get<Array>(*a), std::get<Array>(*b), std::plus<>()))
              : a    ? a
                     : b;
        }
        break;
      }
      case Kind::kIf: {
        const bool taken = std::get<Array>(*values[in[0]]).data()[0] != 0;
        give(node, node.bodies[taken ? 0 : 1]->run_as_it_is(given_values(in, 1, in.size())));
        break;
      }
      case Kind::kLoop: {
        Operands carried = given_values(in, 0, in.size());
        for (size_t i = 0; i < node.times; ++i) carried = node.bodies[0]->run_as_it_is(std::move(carried));
        give(node, carried);
        break;
      }
    }
  }
  Operands results;
  for (Wire wire : outputs_) results.push_back(values[wire].value());
  return results;
}

std::vector<std::string> Graph::node_names() const {
  static constexpr const char* kMarks[] = {"<", "=", ">"};
  std::vector<std::string> names;
  for (const Node& node : nodes_) {
    const std::string name = node.kind == Node::Kind::kGradient ? node.name + "'" : node.name;
    names.push_back(node.tap ? name + kMarks[size_t(node.tap->point())] : name);
  }
  return names;
}

}  // namespace amanda::reference
