#include "resolver.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "amanda/error.h"

namespace amanda {
namespace {

class Resolver {
 public:
  void visit(Tool* tool) {
    if (placed_.contains(tool)) return;
    if (auto start = std::find(path_.begin(), path_.end(), tool); start != path_.end()) refuse_cycle(start);
    path_.push_back(tool);
    for (Tool* dependency : tool->dependencies()) visit(dependency);
    path_.pop_back();
    placed_.insert(tool);
    order_.push_back(tool);
  }

  std::vector<Tool*> order_;

 private:
  [[noreturn]] void refuse_cycle(std::vector<Tool*>::iterator start) const {
    std::string cycle;
    for (auto it = start; it != path_.end(); ++it) cycle += (*it)->name() + " -> ";
    throw Error(
        fmt::format("[resolve] dependency cycle: {}{}; take out one of these depends_on", cycle, (*start)->name()));
  }

  std::vector<Tool*> path_;
  std::unordered_set<Tool*> placed_;
};

}  // namespace

std::vector<Tool*> resolve(const std::vector<Tool*>& tools) {
  Resolver resolver;
  for (Tool* tool : tools) resolver.visit(tool);
  return resolver.order_;
}

bool depends(const Tool& tool, const Tool& other) {
  // Without it, diamonds would cost 2^n, and a cycle made after apply would never end.
  std::unordered_set<const Tool*> seen;
  std::vector<const Tool*> open{&tool};
  while (!open.empty()) {
    const Tool* next = open.back();
    open.pop_back();
    for (const Tool* dependency : next->dependencies()) {
      if (dependency == &other) return true;
      if (seen.insert(dependency).second) open.push_back(dependency);
    }
  }
  return false;
}

}  // namespace amanda
