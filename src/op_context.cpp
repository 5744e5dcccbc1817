#include "amanda/op_context.h"

#include <fmt/format.h>

#include <algorithm>

#include "amanda/error.h"
#include "analysis.h"
#include "thread_scopes.h"

namespace amanda {
namespace {

class FunctionRoutine final : public Routine {
 public:
  explicit FunctionRoutine(std::function<void(Values&)> function) : function_(std::move(function)) {}
  void operator()(Values& values) override { function_(values); }
  std::string name() const override { return "a C++ routine"; }

 private:
  std::function<void(Values&)> function_;
};

std::string qualified(const OpInfo& info) { return info.ns + "::" + info.name; }

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("{}{}{}", i ? ", " : "", i, names[i].empty() ? "" : " (" + names[i] + ")");
  }
  return text;
}

size_t resolve_position(const std::variant<int64_t, std::string>& selected, const std::vector<std::string>& names,
                        size_t count, const std::string& who) {
  if (const auto* name = std::get_if<std::string>(&selected)) {
    auto found = std::find(names.begin(), names.end(), *name);
    if (found != names.end()) return found - names.begin();
    throw std::invalid_argument(fmt::format("{}: there is no '{}'; it has {}", who, *name, listed(names)));
  }
  const int64_t position = std::get<int64_t>(selected);
  if (position >= 0 && static_cast<size_t>(position) < count) return position;
  throw std::invalid_argument(fmt::format("{}: there is no position {}; it has {}", who, position, listed(names)));
}

}  // namespace

OpContext::Session& OpContext::session(const char* asked) const {
  if (session_) return *session_;
  throw Error(
      fmt::format("[context] {} works only while the analysis routine runs; take what you need there, "
                  "and hand it to the routine as a keyword",
                  asked));
}

bool OpContext::is_forward() const { return session("is_forward").site.phase() == Phase::kForward; }
const Tool& OpContext::tool() const { return *session("tool").active.tool; }
std::string OpContext::module_path() const { return session("module_path").site.detail(Detail::kModulePath); }
std::string OpContext::source() const { return session("source").site.detail(Detail::kSource); }
bool OpContext::is_recompute() const { return !session("is_recompute").site.detail(Detail::kIsRecompute).empty(); }
bool OpContext::is_symbolic() const { return session("is_symbolic").site.backend().capabilities().symbolic_analysis; }
size_t OpContext::depth() const { return OpFrame::depth(session("depth").active.bit); }
OpSite& OpContext::site() const { return session("site").site; }

size_t OpContext::num_inputs() const { return session("inputs").site.size(Point::kBefore); }
Value OpContext::input(size_t position) const { return session("inputs").site.get(Point::kBefore, position); }
bool OpContext::has_outputs() const { return session("outputs").point == Point::kAfter; }
size_t OpContext::num_outputs() const { return has_outputs() ? session("outputs").site.size(Point::kAfter) : 0; }
Value OpContext::output(size_t position) const {
  if (!has_outputs()) throw Error("[context] outputs are there only in an analysis registered with require_outputs");
  return session("outputs").site.get(Point::kAfter, position);
}

void OpContext::may_mutate() { session("may_mutate").may_mutate = true; }

Action OpContext::schedule(Point point, RoutinePtr routine, const Positions& positions, bool differentiable,
                           bool allow_view) {
  static constexpr const char* kMethods[] = {"insert_before_op", "replace_op", "insert_after_op"};
  const char* method = kMethods[static_cast<size_t>(point)];
  Session& now = session(method);
  const std::string who = fmt::format("[context] {}: {} on {}", now.active.tool->name(), method, qualified(now.info));
  if (point == Point::kReplace) {
    if (std::string reason = now.site.backend().refusal(now.site, point, allow_view); !reason.empty()) {
      throw Error(fmt::format("{}: {}", who, reason));
    }
  }
  auto action = std::make_shared<ScheduledAction>();
  action->point = point;
  action->routine = std::move(routine);
  action->all_positions = !positions.selected();
  if (positions.selected()) {
    const bool after = point == Point::kAfter;
    const std::vector<std::string>& names = after ? now.info.outputs : now.info.inputs;
    const size_t count = after && !has_outputs() ? names.size() : now.site.size(after ? Point::kAfter : Point::kBefore);
    for (const auto& selected : *positions.selected()) {
      action->positions.push_back(resolve_position(selected, names, count, who));
    }
  }
  action->mode = differentiable || point == Point::kReplace ? RoutineMode::kAmbient : RoutineMode::kIsolated;
  action->allow_view = allow_view;
  action->may_mutate = now.may_mutate;
  action->tool = now.active.tool;
  action->scope = now.active.scope;
  action->status = now.status;
  action->op = &now.info;
  now.scheduled.push_back(action);
  return Action(std::move(action));
}

Action OpContext::insert_before_op(RoutinePtr routine, BeforeOp options) {
  return schedule(Point::kBefore, std::move(routine), options.inputs, options.differentiable, false);
}
Action OpContext::insert_after_op(RoutinePtr routine, AfterOp options) {
  return schedule(Point::kAfter, std::move(routine), options.outputs, options.differentiable, options.allow_view);
}
Action OpContext::replace_op(RoutinePtr routine, ReplaceOp options) {
  return schedule(Point::kReplace, std::move(routine), options.inputs, false, options.allow_view);
}
Action OpContext::insert_before_op(std::function<void(Values&)> routine, BeforeOp options) {
  return insert_before_op(std::make_shared<FunctionRoutine>(std::move(routine)), std::move(options));
}
Action OpContext::insert_after_op(std::function<void(Values&)> routine, AfterOp options) {
  return insert_after_op(std::make_shared<FunctionRoutine>(std::move(routine)), std::move(options));
}
Action OpContext::replace_op(std::function<void(Values&)> routine, ReplaceOp options) {
  return replace_op(std::make_shared<FunctionRoutine>(std::move(routine)), std::move(options));
}

}  // namespace amanda
