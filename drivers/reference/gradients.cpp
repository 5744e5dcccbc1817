// Reverse mode in a graph: backward operators are ordinary nodes, appended after those that they differentiate.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "program.h"

namespace amanda::reference {
namespace {

using Kind = Node::Kind;

/// The gradient that arrives at each wire so far.
class Arriving {
 public:
  explicit Arriving(Program& program) : program_(program) {}

  Wire at(Wire wire) const {
    auto found = gradients_.find(wire);
    return found == gradients_.end() ? kNoWire : found->second;
  }
  void add(Wire wire, Wire gradient) {
    Wire& sum = gradients_.try_emplace(wire, kNoWire).first->second;
    sum = sum == kNoWire ? gradient
                         : program_.append({.kind = Kind::kSum, .name = "sum", .inputs = {sum, gradient}}, 1)[0];
  }

 private:
  Program& program_;
  std::map<Wire, Wire> gradients_;
};

}  // namespace

Wires append_gradients(Program& program, Wire result, const Wires& of) {
  const size_t end = program.nodes.size();
  Arriving arriving(program);
  arriving.add(result, program.append({.kind = Kind::kOnes, .name = "ones", .inputs = {result}}, 1)[0]);
  for (size_t i = end; i-- > 0;) {  // users come after their operands, so the gradient of each wire is complete
    const Node node = program.nodes[i];
    Wires grad_outputs;
    for (Wire wire : node.outputs) grad_outputs.push_back(arriving.at(wire));
    if (std::all_of(grad_outputs.begin(), grad_outputs.end(), [](Wire wire) { return wire == kNoWire; })) continue;
    if (node.kind != Kind::kOp || !node.op->differentiate)
      throw std::invalid_argument(fmt::format("[graph] no gradient flows through '{}'", node.name));
    const Wires grad_inputs = program.append({.kind = Kind::kGradient,
                                              .name = node.name,
                                              .op = node.op,
                                              .inputs = grad_outputs,
                                              .forward = i,
                                              .saved_inputs = node.inputs,
                                              .saved_outputs = node.outputs},
                                             node.inputs.size());
    for (size_t at = 0; at < grad_inputs.size(); ++at) arriving.add(node.inputs[at], grad_inputs[at]);
  }
  Wires wanted;
  for (Wire wire : of) {
    Node defined{.kind = Kind::kDefined, .name = "gradient", .inputs = {arriving.at(wire), wire}};
    wanted.push_back(program.append(std::move(defined), 1)[0]);
  }
  return wanted;
}

}  // namespace amanda::reference
