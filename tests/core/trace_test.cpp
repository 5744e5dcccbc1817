#include "trace_test.h"

#include <algorithm>
#include <iostream>

namespace amanda {

// ---- the tool -------------------------------------------------------------------------------------------------------

TraceTool& TraceTool::after(const std::string& name) {
  depends_on(test_.tool(name));
  return *this;
}

TraceTool& TraceTool::asks(OpFilter ops) {
  options_.ops = std::move(ops);
  return *this;
}

TraceTool& TraceTool::nested() {
  options_.nested = true;
  return *this;
}

TraceTool& TraceTool::backward() {
  options_.backward = true;
  return *this;
}

TraceTool& TraceTool::replaces() {
  what_ = kReplaces;
  return *this;
}

TraceTool& TraceTool::wraps() {
  what_ = kWraps;
  return *this;
}

TraceTool& TraceTool::tells_analysis() {
  tells_analysis_ = true;
  return *this;
}

TraceTool& TraceTool::tells_lifecycle() {
  tells_lifecycle_ = true;
  return *this;
}

TraceTool& TraceTool::does(std::function<void(OpContext&)> analysis, InstOptions options) {
  registered_ = true;
  add_inst_for_op(std::move(analysis), std::move(options));
  return *this;
}

TraceTool& TraceTool::fails_at(const std::string& mark) {
  fails_at_ = mark;
  return *this;
}

void TraceTool::say(const std::string& mark) {
  test_.note(mark == ")" ? mark + name() : name() + mark);
  if (!fails_at_.empty() && mark == fails_at_) throw std::runtime_error("boom");
}

void TraceTool::register_once() {
  if (std::exchange(registered_, true)) return;
  add_inst_for_op([this](OpContext& op) { options_.backward ? analyse_backward(op) : analyse(op); }, options_);
}

void TraceTool::analyse(OpContext& op) {
  if (tells_analysis_) say("?");
  switch (what_) {
    case kAround:
      op.insert_before_op([this](Values&) { say("<"); });
      op.insert_after_op([this](Values&) { say(">"); });
      break;
    case kReplaces:
      op.replace_op([this](Values& values) {
        say("=");
        values.set_result(0, values[0]);
      });
      break;
    case kWraps:
      op.replace_op([this](Values& values) {
        say("(");
        values.call_original();
        say(")");
      });
      break;
  }
}

void TraceTool::analyse_backward(OpContext& op) {
  if (!op.site().made_by_forward()) return;
  if (tells_analysis_) say("?");
  switch (what_) {
    case kAround:
      op.insert_before_backward_op([this](Values&) { say("<"); });
      op.insert_after_backward_op([this](Values&) { say(">"); });
      break;
    case kReplaces:
      op.replace_backward_op([this](Values& values) {
        say("=");
        for (size_t i = 0; i < values.num_results(); ++i) values.set_result(i, values[0]);
      });
      break;
    case kWraps:
      op.replace_backward_op([this](Values& values) {
        say("(");
        values.call_original();
        say(")");
      });
      break;
  }
}

// ---- the fixture ----------------------------------------------------------------------------------------------------

TraceTest::TraceTest() {
  reference::set_kernel_listener([this](const OpInfo& op) { note(op.name); });
  set_log_sink([this](const std::string& line) {
    std::lock_guard lock(mutex_);
    log_.push_back(line);
  });
}

TraceTest::~TraceTest() {
  for (auto& [name, tool] : tools_) tool->fails_at("");
  while (!open_.empty()) leave();
  reference::set_kernel_listener(nullptr);
  set_log_sink([](const std::string& line) { std::cerr << line << "\n"; });
  for (const std::string& line : log_) ADD_FAILURE() << "a log line that the test did not expect: " << line;
}

void TraceTest::note(const std::string& word) {
  std::lock_guard lock(mutex_);
  trace_ += (trace_.empty() ? "" : " ") + word;
}

TraceTool& TraceTest::tool(const std::string& name) {
  auto& tool = tools_[name];
  if (!tool) tool = std::make_unique<TraceTool>(*this, name);
  return *tool;
}

std::unique_ptr<Scope> TraceTest::scope(Tools tools, OnError on_error) {
  std::vector<Tool*> pointers;
  for (TraceTool& tool : tools) pointers.push_back(&tool);
  auto made = std::make_unique<Scope>(pointers, ScopeOptions{on_error});
  for (Tool* tool : made->tools()) static_cast<TraceTool*>(tool)->register_once();
  return made;
}

Scope& TraceTest::apply(Tools tools, OnError on_error) {
  scopes_.push_back(scope(tools, on_error));
  enter(*scopes_.back());
  return *scopes_.back();
}

void TraceTest::enter(Scope& scope) { open_.push_back({&scope, scope.enter_entry()}); }

void TraceTest::leave() {
  const Open last = open_.back();
  open_.pop_back();
  last.scope->leave_entry(last.entry, nullptr);
}

void TraceTest::leave(Scope& scope) {
  auto found = std::find_if(open_.rbegin(), open_.rend(), [&](const Open& open) { return open.scope == &scope; });
  ASSERT_NE(found, open_.rend());
  std::rotate(found.base() - 1, found.base(), open_.end());
  leave();
}

Array TraceTest::call(const std::string& op) {
  const Array a{1, -2}, b{3, 4};
  const Array square({2, 2}, {1, 2, 3, 4});
  Operands operands{a, b};
  if (op == "matmul") operands = {square, square};
  if (op == "linear") operands = {square, square, square};
  if (op == "mul.scalar") operands = {a, 2.0};
  if (op == "concat") operands = {std::vector<Array>{a, b}};
  for (const char* unary : {"neg", "relu", "relu_", "sum", "split", "flatten"}) {
    if (op == unary) operands = {a};
  }
  return std::get<Array>(reference::call(op, operands)[0]);
}

std::string TraceTest::trace() {
  std::lock_guard lock(mutex_);
  return std::exchange(trace_, "");
}

std::vector<std::string> TraceTest::log() {
  std::lock_guard lock(mutex_);
  return std::exchange(log_, {});
}

}  // namespace amanda
