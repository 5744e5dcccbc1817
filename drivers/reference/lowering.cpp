// From tools to a graph that has their actions in it: visit, analyse, lower.
#include <fmt/format.h>

#include "amanda/engine.h"
#include "amanda/reference/graph.h"
#include "driver.h"
#include "place_hash.h"
#include "thread_state.h"

namespace amanda::reference {
namespace {

/// A node as analysis sees it: its operands are symbols.
class NodeSite final : public OpSite {
 public:
  NodeSite(const Operator& op, const std::string& name, const Graph::Wires& inputs, const Graph::Wires& outputs)
      : op_(op), name_(name), inputs_(symbols(inputs)), outputs_(symbols(outputs)) {}

  Backend& backend() const override { return Driver::graph(); }
  OpType type() const override { return op_.type; }
  Phase phase() const override { return Phase::kForward; }
  OpId id() override { return extended(1, name_); }
  size_t size(Side side) const override { return side == Side::kOutputs ? outputs_.size() : inputs_.size(); }
  Value get(Side side, size_t i) override { return value(side == Side::kOutputs ? outputs_.at(i) : inputs_.at(i)); }
  std::string detail(Detail which) override { return which == Detail::kModulePath ? name_ : ""; }

 private:
  static Operands symbols(const Graph::Wires& wires) {
    Operands symbols;
    for (Graph::Wire wire : wires) symbols.push_back(Symbol{fmt::format("%{}", wire)});
    return symbols;
  }

  const Operator& op_;
  const std::string& name_;
  Operands inputs_, outputs_;
};

}  // namespace

class Lowering {
 public:
  Lowering(const Graph& vanilla, ScopeStack& scopes) : vanilla_(vanilla), scopes_(scopes), now_(vanilla.num_wires_) {}

  Graph run() {
    for (Graph::Wire wire : vanilla_.inputs_) now_[wire] = result_.input();
    for (const Graph::Node& node : vanilla_.nodes_) lower(node, analyse(node));
    for (Graph::Wire wire : vanilla_.outputs_) result_.output(now_[wire]);
    return std::move(result_);
  }

 private:
  PlanPtr analyse(const Graph::Node& node) {
    if (node.plan || !Engine::wants(scopes_, Driver::graph(), node.op->type)) return nullptr;
    NodeSite site(*node.op, node.name, node.inputs, node.outputs);
    Engine::analyse(scopes_, site, Point::kBefore);
    return Engine::analyse(scopes_, site, Point::kAfter);  // the outputs are symbols too: no need to run for them
  }

  void lower(Graph::Node node, const PlanPtr& plan) {
    auto has = [&](Point point) { return plan && Engine::has_actions(*plan, point); };
    for (Graph::Wire& wire : node.inputs) wire = now_[wire];
    const Graph::Wires outputs = node.outputs;
    if (has(Point::kBefore)) node.inputs = tap(node, plan, Point::kBefore, node.inputs);
    node.outputs = result_.new_wires(outputs.size());
    if (has(Point::kReplace)) {
      node.plan = plan;
      node.point = Point::kReplace;
    }
    result_.nodes_.push_back(node);
    if (has(Point::kAfter)) {
      Graph::Wires operands = node.inputs;
      operands.insert(operands.end(), node.outputs.begin(), node.outputs.end());
      node.outputs = tap(node, plan, Point::kAfter, operands);
    }
    for (size_t i = 0; i < outputs.size(); ++i) now_[outputs[i]] = node.outputs[i];
  }

  /// Appends a tap for what flows into or out of `node`; returns what flows on.
  Graph::Wires tap(const Graph::Node& node, const PlanPtr& plan, Point point, const Graph::Wires& operands) {
    const Graph::Wires flows_on = result_.new_wires(point == Point::kAfter ? node.outputs.size() : node.inputs.size());
    result_.nodes_.push_back({node.op, node.name, operands, flows_on, plan, point});
    return flows_on;
  }

  const Graph& vanilla_;
  ScopeStack& scopes_;
  Graph result_;
  Graph::Wires now_;  // of each wire of the vanilla graph: where its value is in the new one
};

Graph Graph::instrumented() const {
  ScopeStack* scopes = this_thread.observing();
  return scopes ? Lowering(*this, *scopes).run() : *this;
}

}  // namespace amanda::reference
