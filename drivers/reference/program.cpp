#include "program.h"

#include <numeric>
#include <utility>

#include "place_hash.h"

namespace amanda::reference {

Location Location::inside(const std::string& name) const {
  return {extended(place, name), path.empty() ? name : path + "." + name};
}

OpId Location::id_of(const Operator& op) const {
  const OpInfo& info = op.info;
  return extended(place, info.overload.empty() ? info.name : info.name + "." + info.overload);
}

Wires Program::new_wires(size_t count) {
  Wires wires(count);
  std::iota(wires.begin(), wires.end(), num_wires);
  num_wires += count;
  return wires;
}

const Wires& Program::append(Node node, size_t count) {
  node.outputs = new_wires(count);
  return nodes.emplace_back(std::move(node)).outputs;
}

}  // namespace amanda::reference
