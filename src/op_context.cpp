#include "amanda/op_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "amanda/base/thread_calls.h"
#include "amanda/error.h"
#include "context_session.h"
#include "op_name.h"
#include "refusal.h"
#include "scheduled_action.h"

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

/// The positions of one side, some with names.
struct NamedPositions {
  std::span<const std::string> names;
  size_t count;  // not less than of the names

  std::string listed() const {
    if (count == 0) return "it has none";
    std::string text = "it has ";
    for (size_t i = 0; i < count; ++i) {
      const bool named = i < names.size() && !names[i].empty();
      text += fmt::format("{}{}{}", i ? ", " : "", i, named ? " (" + names[i] + ")" : "");
    }
    return text;
  }
};

/// Who schedules what on which operator, for messages.
struct Request {
  ContextSession& session;
  const char* method;

  std::string text() const {
    return fmt::format("[context] {}: {} on {}", session.active.tool->name(), method, op_place(session.site));
  }
};

// Backward positions have no names.
NamedPositions positions_of(const OpSite& site, Phase phase, Side side) {
  if (phase != site.phase()) return {};
  const OpInfo& info = site.backend().info(site.type());
  const std::vector<std::string>& names = side == Side::kOutputs ? info.outputs : info.inputs;
  return {names, std::max(names.size(), site.size(side))};
}

size_t resolve_position(const std::variant<int64_t, std::string>& selected, const NamedPositions& positions,
                        const Request& request) {
  if (const auto* name = std::get_if<std::string>(&selected)) {
    auto found = std::find(positions.names.begin(), positions.names.end(), *name);
    if (found != positions.names.end() && !name->empty()) return found - positions.names.begin();
    throw std::invalid_argument(fmt::format("{}: there is no '{}'; {}", request.text(), *name, positions.listed()));
  }
  const int64_t position = std::get<int64_t>(selected);
  if (position >= 0 && static_cast<size_t>(position) < positions.count) return position;
  throw std::invalid_argument(
      fmt::format("{}: there is no position {}; {}", request.text(), position, positions.listed()));
}

// On backward operators that do not exist yet: those with that position will run the action.
size_t later_position(const std::variant<int64_t, std::string>& selected, const Request& request) {
  const auto* position = std::get_if<int64_t>(&selected);
  if (position && *position >= 0) return *position;
  throw std::invalid_argument(fmt::format("{}: gradients are selected by position, from 0 on", request.text()));
}

void check_later(Phase phase, const Request& request) {
  OpSite& site = request.session.site;
  if (phase == Phase::kForward) {
    throw Error(request.text() +
                ": the forward operator has run; schedule this in an analysis routine of forward operators");
  }
  if (site.backend().capabilities().backward == BackwardOps::kNone) {
    throw Error(fmt::format("{}: '{}' has no backward operators", request.text(), site.backend().name_space()));
  }
  if (site.id() == 0)
    throw Error(request.text() + ": this operator has no id, so its backward operators can't be told");
}

constexpr ScheduleMethod::Selection kInputs{"inputs", &ActionOptions::inputs},
    kOutputs{"outputs", &ActionOptions::outputs}, kGradInputs{"grad_inputs", &ActionOptions::grad_inputs},
    kGradOutputs{"grad_outputs", &ActionOptions::grad_outputs}, kNothing{nullptr, nullptr};

constexpr ScheduleMethod kMethods[] = {
    {"insert_before_op", Phase::kForward, Point::kBefore, kInputs, kNothing},
    {"insert_after_op", Phase::kForward, Point::kAfter, kOutputs, kInputs},
    {"replace_op", Phase::kForward, Point::kReplace, kInputs, kNothing},
    {"insert_before_backward_op", Phase::kBackward, Point::kBefore, kGradOutputs, kNothing},
    {"insert_after_backward_op", Phase::kBackward, Point::kAfter, kGradInputs, kGradOutputs},
    {"replace_backward_op", Phase::kBackward, Point::kReplace, kGradOutputs, kNothing},
};

void check_options(const ScheduleMethod& method, const ActionOptions& options, const Request& request) {
  for (const ScheduleMethod::Selection& selection : {kInputs, kOutputs, kGradInputs, kGradOutputs}) {
    if (selection.option == method.gets.option || selection.option == method.shown.option) continue;
    if (!(options.*selection.option).is_given()) continue;
    throw std::invalid_argument(
        fmt::format("{}: there are no {} here; select {}", request.text(), selection.name, method.gets.name));
  }
  const bool replaces = method.point == Point::kReplace;
  if (replaces && options.differentiable)
    throw std::invalid_argument(request.text() + ": a replacement is always differentiable; leave .differentiable out");
  if (!options.with_operators && (replaces || options.differentiable || options.kind != RoutineKind::kObserve)) {
    throw Error(
        fmt::format("{}: .with_operators = false is for a routine that only looks (.kind = kObserve) and is not "
                    "differentiable",
                    request.text()));
  }
}

RoutineMode mode_of(Point point, const ActionOptions& options) {
  if (options.differentiable || point == Point::kReplace) return RoutineMode::kAmbient;
  return options.with_operators ? RoutineMode::kIsolated : RoutineMode::kNoOperators;
}

}  // namespace

const ScheduleMethod& schedule_method(std::string_view name) {
  for (const ScheduleMethod& method : kMethods) {
    if (method.name == name) return method;
  }
  throw std::out_of_range(fmt::format("[context] no method is named '{}'", name));
}

ContextSession& OpContext::session(const char* asked) const {
  const std::thread::id analyst = analyst_.load();
  if (analyst == std::this_thread::get_id()) return *session_;
  if (analyst != std::thread::id{}) {
    throw Error(
        fmt::format("[context] {} works only on the thread that runs the analysis routine; take what you need there, "
                    "and hand it to the other thread",
                    asked));
  }
  throw Error(
      fmt::format("[context] {} works only while the analysis routine runs; take what you need there, "
                  "and hand it to the routine as a keyword",
                  asked));
}

std::string OpContext::name_space() const { return std::string(backend_->name_space()); }

const Tool& OpContext::tool() const { return *session("tool").active.tool; }
std::string OpContext::module_path() const { return session("module_path").site.detail(Detail::kModulePath); }
std::string OpContext::source() const { return session("source").site.detail(Detail::kSource); }
bool OpContext::is_recompute() const { return !session("is_recompute").site.detail(Detail::kIsRecompute).empty(); }
bool OpContext::is_symbolic() const { return session("is_symbolic").site.backend().capabilities().symbolic_analysis; }
std::string OpContext::where() const { return op_place(session("where").site); }
size_t OpContext::depth() const { return OpFrame::depth(session("depth").active.bit); }
OpSite& OpContext::site() const { return session("site").site; }

size_t OpContext::num_inputs() const { return session("inputs").site.forward_size(Side::kInputs); }
Value OpContext::input(size_t position) const { return session("inputs").site.forward_get(Side::kInputs, position); }
std::string OpContext::parameter_name(size_t position) const { return backend_->parameter_name(input(position)); }
std::vector<std::string> OpContext::parameter_names(size_t position) const {
  return backend_->parameter_names(input(position));
}
bool OpContext::has_outputs() const {
  const ContextSession& now = session("outputs");
  return now.point == Point::kAfter || is_backward() || now.site.backend().capabilities().symbolic_analysis;
}
size_t OpContext::num_outputs() const {
  return has_outputs() ? session("outputs").site.forward_size(Side::kOutputs) : 0;
}
Value OpContext::output(size_t position) const {
  if (!has_outputs()) throw Error("[context] outputs are there only in an analysis registered with require_outputs");
  return session("outputs").site.forward_get(Side::kOutputs, position);
}

std::string OpContext::attribute(std::string_view name) const {
  return session("attribute").site.forward_attribute(name);
}
std::string OpContext::backward_attribute(std::string_view name) const {
  return is_backward() ? session("backward_attribute").site.attribute(name) : "";
}

size_t OpContext::num_grad_outputs() const {
  return is_backward() ? session("grad_outputs").site.size(Side::kInputs) : 0;
}
Value OpContext::grad_output(size_t position) const {
  if (!is_backward()) throw Error("[context] a forward operator has no grad_outputs");
  return session("grad_outputs").site.get(Side::kInputs, position);
}
bool OpContext::has_grad_inputs() const {
  const ContextSession& now = session("grad_inputs");
  return is_backward() && (now.point == Point::kAfter || now.site.backend().capabilities().symbolic_analysis);
}
size_t OpContext::num_grad_inputs() const {
  return has_grad_inputs() ? session("grad_inputs").site.size(Side::kOutputs) : 0;
}
Value OpContext::grad_input(size_t position) const {
  if (!has_grad_inputs()) {
    throw Error("[context] grad_inputs are there only in a backward analysis registered with require_outputs");
  }
  return session("grad_inputs").site.get(Side::kOutputs, position);
}

void OpContext::may_mutate() { session("may_mutate").may_mutate = true; }

std::shared_ptr<const OpPlace> OpContext::place() const {
  return std::make_shared<const OpPlace>(
      OpPlace{name_space(), info_, id_, backward_info_, backward_id_, module_path(), source()});
}

Action OpContext::schedule(const ScheduleMethod& method, RoutinePtr routine, const ActionOptions& options) {
  ContextSession& now = session(method.name);
  const Request request{now, method.name};
  const bool here = method.phase == now.site.phase();  // or on operators that do not exist yet
  if (!here) check_later(method.phase, request);
  check_options(method, options, request);
  auto action = std::make_shared<ScheduledAction>();
  action->phase = method.phase;
  action->point = method.point;
  action->routine = std::move(routine);
  auto resolve = [&](const Positions& selection, Side side) {
    std::vector<size_t> found;
    if (!selection.selected()) return found;
    const NamedPositions available = positions_of(now.site, method.phase, side);
    for (const auto& selected : *selection.selected()) {
      found.push_back(here ? resolve_position(selected, available, request) : later_position(selected, request));
    }
    return found;
  };
  const Positions& gets = options.*method.gets.option;
  action->all_positions = !gets.selected();
  action->positions = resolve(gets, side_of(method.point));
  if (method.shown.name) {
    const Positions& shown = options.*method.shown.option;
    action->shows_all = shown.is_given() && !shown.selected();
    action->shows = resolve(shown, Side::kInputs);
  }
  if (std::string reason = both_sides_refusal(now.site, *action); !reason.empty())
    throw Error(fmt::format("{}: {}", request.text(), reason));
  action->mode = mode_of(method.point, options);
  action->allow_view = options.allow_view;
  action->may_mutate = now.may_mutate;
  action->kind = options.kind;
  if (here && action->surely_edits()) {
    if (std::string reason = refusal(now.site, *action); !reason.empty())
      throw Error(fmt::format("{}: {}", request.text(), reason));
  }
  action->tool = now.active.tool;
  action->scope = now.active.scope;
  action->status = now.status;
  action->with_run = options.with_run && action->routine->uses_run();
  if (!now.place) now.place = place();
  action->place = now.place;
  now.scheduled.push_back(action);
  return Action(std::move(action));
}

Action OpContext::insert_before_op(RoutinePtr routine, ActionOptions options) {
  return schedule(schedule_method("insert_before_op"), std::move(routine), options);
}
Action OpContext::insert_before_op(std::function<void(Values&)> routine, ActionOptions options) {
  return insert_before_op(std::make_shared<FunctionRoutine>(std::move(routine)), std::move(options));
}
Action OpContext::insert_after_op(RoutinePtr routine, ActionOptions options) {
  return schedule(schedule_method("insert_after_op"), std::move(routine), options);
}
Action OpContext::insert_after_op(std::function<void(Values&)> routine, ActionOptions options) {
  return insert_after_op(std::make_shared<FunctionRoutine>(std::move(routine)), std::move(options));
}
Action OpContext::replace_op(RoutinePtr routine, ActionOptions options) {
  return schedule(schedule_method("replace_op"), std::move(routine), options);
}
Action OpContext::replace_op(std::function<void(Values&)> routine, ActionOptions options) {
  return replace_op(std::make_shared<FunctionRoutine>(std::move(routine)), std::move(options));
}
Action OpContext::insert_before_backward_op(RoutinePtr routine, ActionOptions options) {
  return schedule(schedule_method("insert_before_backward_op"), std::move(routine), options);
}
Action OpContext::insert_before_backward_op(std::function<void(Values&)> routine, ActionOptions options) {
  return insert_before_backward_op(std::make_shared<FunctionRoutine>(std::move(routine)), std::move(options));
}
Action OpContext::insert_after_backward_op(RoutinePtr routine, ActionOptions options) {
  return schedule(schedule_method("insert_after_backward_op"), std::move(routine), options);
}
Action OpContext::insert_after_backward_op(std::function<void(Values&)> routine, ActionOptions options) {
  return insert_after_backward_op(std::make_shared<FunctionRoutine>(std::move(routine)), std::move(options));
}
Action OpContext::replace_backward_op(RoutinePtr routine, ActionOptions options) {
  return schedule(schedule_method("replace_backward_op"), std::move(routine), options);
}
Action OpContext::replace_backward_op(std::function<void(Values&)> routine, ActionOptions options) {
  return replace_backward_op(std::make_shared<FunctionRoutine>(std::move(routine)), std::move(options));
}

}  // namespace amanda
