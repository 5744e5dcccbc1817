#include "amanda/tool.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <utility>

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

bool glob(const std::string& pattern, const std::string& text) {
  return fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

}  // namespace

OpFilter::OpFilter(std::vector<std::string> patterns)
    : kind_(Kind::kPatterns), patterns_(std::make_shared<const std::vector<std::string>>(std::move(patterns))) {
  for (const std::string& pattern : *patterns_) {
    if (pattern.empty())
      throw std::invalid_argument("[tool] an operator pattern is empty; give a name such as \"conv2d\"");
  }
}

const std::vector<std::string>& OpFilter::patterns() const {
  static const std::vector<std::string> none;
  return patterns_ ? *patterns_ : none;
}

OpFilter OpFilter::on_demand() {
  OpFilter filter;
  filter.kind_ = Kind::kOnDemand;
  return filter;
}

bool OpFilter::matches(const OpInfo& info) const {
  if (kind_ != Kind::kPatterns) return kind_ == Kind::kAll;
  for (const std::string& pattern : *patterns_) {
    const bool qualified = pattern.find("::") != std::string::npos;
    const bool overload = pattern.find('.', qualified ? pattern.find("::") : 0) != std::string::npos;
    std::string text = qualified ? info.ns + "::" + info.name : info.name;
    if (overload) text += "." + info.overload;
    if (glob(pattern, text)) return true;
  }
  return false;
}

Tool::Tool(std::string name, std::string name_space)
    : name_(std::move(name)),
      name_space_(std::move(name_space)),
      registrations_(std::make_shared<const std::vector<Registration>>()) {}

void Tool::add_inst_for_op(std::function<void(OpContext&)> analysis, InstOptions options) {
  if (!analysis)
    throw std::invalid_argument(fmt::format("[tool] {}.add_inst_for_op: the analysis routine is empty", name_));
  add_inst_for_op(std::make_shared<FunctionAnalysis>(std::move(analysis)), std::move(options));
}

void Tool::add_inst_for_op(std::shared_ptr<Analysis> analysis, InstOptions options) {
  const OpFilter filter = options.ops;
  {
    std::lock_guard lock(mutex_);
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

std::vector<Tool*> Tool::dependencies() const {
  std::lock_guard lock(mutex_);
  return dependencies_;
}

}  // namespace amanda
