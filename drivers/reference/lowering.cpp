// From tools to a graph that has their actions in it: visit, and lower.
#include <fmt/format.h>

#include <map>

#include "amanda/engine.h"
#include "amanda/reference/graph.h"
#include "graph_node.h"
#include "thread_state.h"

namespace amanda::reference {

using Wires = Graph::Wires;

namespace {

Operands symbols(const Wires& wires, size_t begin, size_t end) {
  Operands symbols;
  for (size_t i = begin; i < end; ++i) symbols.push_back(Symbol{fmt::format("%{}", wires[i])});
  return symbols;
}

}  // namespace

/// Puts taps into a copy. Walks as GraphView does: the operators have the same numbers.
class Lowering {
 public:
  explicit Lowering(const std::vector<SitePlan>& sites) {
    for (const SitePlan& site : sites) taps_[site.index] = site.taps;
  }

  Graph run(const Graph& vanilla) {
    Graph made;
    std::vector<Graph::Wire> now(vanilla.num_wires_);  // where the value of each wire is
    std::vector<Wires> seen_inputs, own_outputs;       // of each node: what its backward operator is to see
    for (Graph::Wire wire : vanilla.inputs_) now[wire] = made.input();
    for (const Graph::Node& original : vanilla.nodes_) {
      Graph::Node node = original;
      using Kind = Graph::Node::Kind;
      for (Graph::Wire& wire : node.inputs) wire = wire == Graph::kNone ? wire : now[wire];
      std::vector<TapPtr> taps;
      if (node.kind == Kind::kOp || node.kind == Kind::kGradient) taps = taps_[next_++];
      if (node.kind == Kind::kGradient) {  // the contract of GraphSite::lower()
        const size_t grads = node.op->info.outputs.size();
        const Wires &inputs = seen_inputs[node.forward], &outputs = own_outputs[node.forward];
        std::copy(inputs.begin(), inputs.end(), node.inputs.begin() + grads);
        std::copy(outputs.begin(), outputs.end(), node.inputs.begin() + grads + inputs.size());
      }
      for (GraphPtr& body : node.bodies) body = std::make_shared<const Graph>(run(*body));
      const size_t edited = node.kind == Kind::kGradient ? node.op->info.outputs.size() : node.inputs.size();
      for (const TapPtr& tap : taps) {
        if (tap->point() != Point::kBefore) continue;
        Graph::Node before = node;
        before.tap = tap;
        before.inputs.resize(edited);
        const Wires out = made.append(before, edited);
        std::copy(out.begin(), out.end(), node.inputs.begin());
      }
      for (const TapPtr& tap : taps) {
        if (tap->point() == Point::kReplace) node.tap = tap;
      }
      Wires outputs = made.append(node, original.outputs.size());
      seen_inputs.push_back(node.inputs);
      own_outputs.push_back(outputs);
      for (const TapPtr& tap : taps) {
        if (tap->point() != Point::kAfter) continue;
        Graph::Node after = node;
        after.tap = tap;
        if (node.kind == Kind::kGradient) after.inputs.clear();
        after.inputs.insert(after.inputs.end(), outputs.begin(), outputs.end());
        outputs = made.append(after, outputs.size());
      }
      for (size_t i = 0; i < outputs.size(); ++i) now[original.outputs[i]] = outputs[i];
    }
    for (Graph::Wire wire : vanilla.outputs_) made.output(now[wire]);
    return made;
  }

 private:
  std::map<size_t, std::vector<TapPtr>> taps_;
  size_t next_ = 0;
};

/// A graph as the core sees it.
class GraphView final : public GraphSite {
 public:
  explicit GraphView(const Graph& graph) : graph_(graph) {}
  Backend& backend() const override { return Driver::graph(); }
  void each_op(GraphVisitor& visitor) override { show(graph_, "", 1, visitor); }
  std::shared_ptr<void> lower(const std::vector<SitePlan>& sites) override {
    return std::make_shared<Graph>(Lowering(sites).run(graph_));
  }

 private:
  static void show(const Graph& graph, const std::string& path, OpId place, GraphVisitor& visitor) {
    for (const Graph::Node& node : graph.nodes_) {
      using Kind = Graph::Node::Kind;
      const Wires& in = node.inputs;
      if (node.kind == Kind::kOp) {
        OperatorCall site(Driver::graph(), *node.op, node_place(place, node.name, *node.op), path + node.name,
                          symbols(in, 0, in.size()), symbols(node.outputs, 0, node.outputs.size()));
        visitor.op(site);
      } else if (node.kind == Kind::kGradient) {
        const size_t grads = node.op->info.outputs.size(), ins = node.op->info.inputs.size();
        auto some = [](const Operands& operands) { return Gradients(operands.begin(), operands.end()); };
        GradientNodeCall site(*node.op, node_place(place, node.name, *node.op), some(symbols(in, 0, grads)),
                              some(symbols(node.outputs, 0, ins)), symbols(in, grads, grads + ins),
                              symbols(in, grads + ins, in.size()));
        visitor.op(site);
      } else if (node.kind == Kind::kSum) {
        visitor.unseen(path + node.name, "it adds up gradients: no operator, in eager either");
      }
      for (const GraphPtr& body : node.bodies) show(*body, path + node.name + "/", extended(place, node.name), visitor);
    }
  }

  const Graph& graph_;
};

ArtifactPtr Graph::artifact() const {
  ScopeStack* scopes = this_thread.observing();
  if (!scopes) return nullptr;
  GraphView view(*this);
  return artifacts_->get(Engine::toolset(*scopes), fmt::format("{}/{}", nodes_.size(), outputs_.size()), view);
}

Graph Graph::instrumented() const {
  const ArtifactPtr made = artifact();
  Graph now = made && made->lowered ? *static_cast<const Graph*>(made->lowered.get()) : *this;
  now.is_front_ = false;
  return now;
}

}  // namespace amanda::reference
