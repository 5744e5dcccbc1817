#include "graph_view.h"

#include <fmt/format.h>

#include "graph_gradient_call.h"
#include "lowering.h"
#include "operator_call.h"

namespace amanda::reference {
namespace {

using Kind = Node::Kind;

Operands symbols(const Wires& wires) {
  Operands symbols;
  for (Wire wire : wires) symbols.push_back(Symbol{fmt::format("%{}", wire)});
  return symbols;
}

Gradients gradient_symbols(const Wires& wires) {
  Gradients gradients;
  for (Wire wire : wires) gradients.push_back(wire == kNoWire ? std::nullopt : std::optional(symbols({wire})[0]));
  return gradients;
}

void show(const Program& program, const Location& around, GraphVisitor& visitor) {
  for (const Node& node : program.nodes) {
    const Location here = around.inside(node.name);
    switch (node.kind) {
      case Kind::kOp: {
        OperatorCall site(Driver::graph(), *node.op, here.id_of(*node.op), here.path, symbols(node.inputs),
                          symbols(node.outputs));
        visitor.op(site);
        break;
      }
      case Kind::kGradient: {
        GraphGradientCall site({*node.op, here, symbols(node.saved_inputs), symbols(node.saved_outputs)},
                               gradient_symbols(node.inputs), gradient_symbols(node.outputs));
        visitor.op(site);
        break;
      }
      case Kind::kOnes:
      case Kind::kSum:
      case Kind::kDefined: visitor.unseen(here.path, "it joins gradients, which is no operator in eager either"); break;
      case Kind::kIf:
      case Kind::kLoop:
        for (const auto& body : node.bodies) show(*body, here, visitor);
        break;
    }
  }
}

}  // namespace

Backend& GraphView::backend() const { return Driver::graph(); }

void GraphView::each_op(GraphVisitor& visitor) { show(program_, {}, visitor); }

std::shared_ptr<void> GraphView::lower(const std::vector<SitePlan>& sites) {
  return std::make_shared<Program>(Lowering(sites).run(program_));
}

}  // namespace amanda::reference
