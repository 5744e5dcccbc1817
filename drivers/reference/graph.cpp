// Builds a graph, and runs either the program or its instrumented copy for the tools in force.
#include "amanda/reference/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "amanda/driver/engine.h"
#include "graph_run.h"
#include "graph_view.h"
#include "program.h"
#include "thread_state.h"

namespace amanda::reference {

// ---- building ---------------------------------------------------------------------------------------------------

Graph::Graph() : program_(std::make_shared<Program>()), artifacts_(std::make_shared<ArtifactCache>()) {}

Graph::Wire Graph::input() { return program_->inputs.emplace_back(program_->new_wires(1)[0]); }

Graph::Wires Graph::add(std::string_view name, Wires inputs, const std::string& node_name) {
  const Operator& op = find_operator(name);
  if (op.in_place) throw std::invalid_argument(fmt::format("[graph] {} works in place; a wire has one value", name));
  if (inputs.size() != op.info.inputs.size()) {
    throw std::invalid_argument(
        fmt::format("[graph] {} takes {} inputs, not {}", name, op.info.inputs.size(), inputs.size()));
  }
  const auto& nodes = program_->nodes;
  if (std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) { return node.name == node_name; }))
    throw std::invalid_argument(fmt::format("[graph] there is a node '{}' already", node_name));
  return program_->append({.kind = Node::Kind::kOp, .name = node_name, .op = &op, .inputs = std::move(inputs)},
                          op.info.outputs.size());
}

Graph::Wires Graph::add_if(Wire condition, Wires inputs, const Graph& taken, const Graph& other,
                           const std::string& name) {
  const size_t count = taken.program_->outputs.size();
  if (other.program_->outputs.size() != count) {
    throw std::invalid_argument(fmt::format("[graph] one branch of '{}' gives {} values, the other {}", name, count,
                                            other.program_->outputs.size()));
  }
  inputs.insert(inputs.begin(), condition);
  Node node{.kind = Node::Kind::kIf, .name = name, .inputs = std::move(inputs)};
  for (const Graph* branch : {&taken, &other})
    node.bodies.push_back(std::make_shared<const Program>(*branch->program_));
  return program_->append(std::move(node), count);
}

Graph::Wires Graph::add_loop(size_t times, Wires carried, const Graph& body, const std::string& name) {
  const size_t count = carried.size();
  if (body.program_->outputs.size() != count) {
    throw std::invalid_argument(fmt::format("[graph] the body of '{}' gives {} values for {} that it carries", name,
                                            body.program_->outputs.size(), count));
  }
  return program_->append({.kind = Node::Kind::kLoop,
                           .name = name,
                           .inputs = std::move(carried),
                           .bodies = {std::make_shared<const Program>(*body.program_)},
                           .times = times},
                          count);
}

void Graph::output(Wire wire) { program_->outputs.push_back(wire); }

Graph::Wires Graph::gradients(Wire result, const Wires& of) { return append_gradients(*program_, result, of); }

// ---- run ------------------------------------------------------------------------------------------------------------

ArtifactPtr Graph::artifact() const {
  ScopeStack* scopes = this_thread.observing();
  if (!scopes || !artifacts_) return nullptr;
  GraphView view(*program_);
  // A program only grows: this number distinguishes its artifacts.
  const std::string signature = fmt::format("{}/{}", program_->nodes.size(), program_->outputs.size());
  return artifacts_->get(Engine::toolset(*scopes), signature, view);
}

Operands Graph::run(Operands inputs) const {
  const ArtifactPtr made = artifact();
  const bool tapped = made && made->lowered;
  return run_program(tapped ? *static_cast<const Program*>(made->lowered.get()) : *program_, std::move(inputs));
}

Graph Graph::instrumented() const {
  const ArtifactPtr made = artifact();
  return Graph(made && made->lowered ? std::static_pointer_cast<Program>(made->lowered) : program_);
}

ArtifactCache::Info Graph::cache_info() const { return artifacts_ ? artifacts_->info() : ArtifactCache::Info{}; }

std::vector<std::string> Graph::node_names() const {
  static constexpr const char* kMarks[] = {"<", "=", ">"};
  std::vector<std::string> names;
  for (const Node& node : program_->nodes) {
    const std::string name = node.kind == Node::Kind::kGradient ? node.name + "'" : node.name;
    names.push_back(node.tap ? name + kMarks[static_cast<size_t>(node.tap->point())] : name);
  }
  return names;
}

}  // namespace amanda::reference
