#include "amanda/tool.h"

#include <fmt/format.h>

#include <utility>

#include "amanda/error.h"
#include "backends.h"
#include "generation.h"

namespace amanda {
namespace {

class FunctionAnalysis final : public Analysis {
 public:
  explicit FunctionAnalysis(std::function<void(OpContext&)> function) : function_(std::move(function)) {}
  void operator()(OpContext& context) override { function_(context); }

 private:
  std::function<void(OpContext&)> function_;
};

}  // namespace

Tool::Tool(std::string name)
    : name_(std::move(name)), registrations_(std::make_shared<const std::vector<Registration>>()) {}

void Tool::add_inst_for_op(std::function<void(OpContext&)> analysis, InstOptions options) {
  if (!analysis)
    throw std::invalid_argument(fmt::format("[tool] {}.add_inst_for_op: the analysis routine is empty", name_));
  add_inst_for_op(std::make_shared<FunctionAnalysis>(std::move(analysis)), std::move(options));
}

void Tool::add_inst_for_op(std::shared_ptr<Analysis> analysis, InstOptions options) {
  OpFilter filter;
  {
    std::lock_guard lock(mutex_);
    restrict_locked(options);
    filter = options.ops;
    auto changed = std::make_shared<std::vector<Registration>>(*registrations_);
    changed->push_back({std::move(analysis), std::move(options)});
    registrations_ = std::move(changed);
  }
  ++version_;
  if (!applied_) return;
  tools_changed();
  refresh_this_thread();
  if (filter.is_on_demand() || !is_open_elsewhere(*this)) return;
  const std::vector<std::string> patterns = filter.matches_all() ? std::vector<std::string>{"*"} : filter.patterns();
  for (Backend* backend : attached_backends()) backend->expect(patterns);
}

void Tool::narrow(const OpFilter& ops, const ModuleFilter& modules) {
  if (ops.is_on_demand())
    throw std::invalid_argument(fmt::format("[tool] {}.narrow takes operators, not those asked for on demand", name_));
  if (applied_)
    throw Error(fmt::format("[tool] {}.narrow: a scope was made with this tool; narrow it before amanda.apply", name_));
  std::lock_guard lock(mutex_);
  only_ops_ = only_ops_.narrowed(ops);
  only_modules_ = only_modules_.narrowed(modules);
  auto changed = std::make_shared<std::vector<Registration>>(*registrations_);
  for (Registration& registration : *changed) restrict_locked(registration.options);
  registrations_ = std::move(changed);
}

void Tool::restrict_locked(InstOptions& options) const {
  options.ops = options.ops.narrowed(only_ops_);
  options.modules = options.modules.narrowed(only_modules_);
}

void Tool::depends_on(Tool& tool) {
  std::lock_guard lock(mutex_);
  for (Tool* known : dependencies_) {
    if (known == &tool) return;
  }
  dependencies_.push_back(&tool);
}

Registrations Tool::registrations() const {
  std::lock_guard lock(mutex_);
  return registrations_;
}

size_t Tool::analysed(Phase phase) const {
  std::lock_guard lock(mutex_);
  return analysed_[static_cast<size_t>(phase)].size();
}

void Tool::forget_analysed() {
  {
    std::lock_guard lock(mutex_);
    for (auto& of_phase : analysed_) {
      std::erase_if(of_phase, [](const auto& entry) { return !entry.second; });
    }
  }
  plans_changed();
}

void Tool::note_analysed(Phase phase, OpId id, bool in_graph) {
  std::lock_guard lock(mutex_);
  analysed_[static_cast<size_t>(phase)][id] |= in_graph;
}

bool Tool::has_analysed(Phase phase, OpId id) const {
  std::lock_guard lock(mutex_);
  return analysed_[static_cast<size_t>(phase)].contains(id);
}

std::vector<Tool*> Tool::dependencies() const {
  std::lock_guard lock(mutex_);
  return dependencies_;
}

}  // namespace amanda
