#include "lowering.h"

#include <utility>

namespace amanda::reference {
namespace {

using Kind = Node::Kind;

/// Copies a program: maps the original's wires to those of the copy.
class Copy {
 public:
  explicit Copy(const Program& vanilla) : now_(vanilla.num_wires) {
    for (Wire wire : vanilla.inputs) now_[wire] = made_.inputs.emplace_back(made_.new_wires(1)[0]);
  }

  Program finish(const Program& vanilla) {
    made_.outputs = now(vanilla.outputs);
    return std::move(made_);
  }

  /// Makes `node` read the copy's wires.
  void rewire(Node& node) const {
    node.inputs = now(node.inputs);
    if (node.kind != Kind::kGradient) return;
    // The contract of GraphSite::lower(): inputs after the taps before the forward operator; results of the operator
    // itself, or of its replacement.
    node.saved_inputs = seen_[node.forward].inputs;
    node.saved_outputs = seen_[node.forward].outputs;
  }

  void append(Node node, const Wires& outputs_were, const std::vector<TapPtr>& taps) {
    for (const TapPtr& tap : taps) {
      if (tap->point() != Point::kBefore) continue;
      Node before = node;
      before.tap = tap;
      node.inputs = made_.append(std::move(before), node.inputs.size());
    }
    for (const TapPtr& tap : taps) {
      if (tap->point() == Point::kReplace) node.tap = tap;
    }
    Wires outputs = made_.append(node, outputs_were.size());
    seen_.push_back({node.inputs, outputs});
    for (const TapPtr& tap : taps) {
      if (tap->point() != Point::kAfter) continue;
      Node after = node;
      after.tap = tap;
      after.results = outputs;
      outputs = made_.append(std::move(after), outputs.size());
    }
    for (size_t i = 0; i < outputs.size(); ++i) now_[outputs_were[i]] = outputs[i];
  }

 private:
  Wires now(Wires wires) const {
    for (Wire& wire : wires) wire = wire == kNoWire ? kNoWire : now_[wire];
    return wires;
  }

  struct Seen {
    Wires inputs, outputs;
  };
  Program made_;
  std::vector<Wire> now_;   // by wire of the original
  std::vector<Seen> seen_;  // by node of the original: the operands that its backward operator sees
};

}  // namespace

Lowering::Lowering(const std::vector<SitePlan>& sites) {
  for (const SitePlan& site : sites) taps_[site.index] = site.taps;
}

Program Lowering::copy(const Program& vanilla, const Location& around) {
  Copy copied(vanilla);
  std::vector<size_t> numbers;  // of the operators, by vanilla node
  for (Node node : vanilla.nodes) {
    const Wires outputs_were = node.outputs;
    copied.rewire(node);
    node.location = around.inside(node.name);
    std::vector<TapPtr> taps;
    if (node.kind == Kind::kOp || node.kind == Kind::kGradient) {
      node.operator_number = next_++;
      taps = taps_[node.operator_number];
      if (node.kind == Kind::kGradient) node.forward_number = numbers[node.forward];
    }
    numbers.push_back(node.operator_number);
    for (auto& body : node.bodies) body = std::make_shared<const Program>(copy(*body, node.location));
    copied.append(std::move(node), outputs_were, taps);
  }
  return copied.finish(vanilla);
}

}  // namespace amanda::reference
