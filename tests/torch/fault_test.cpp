// A C++ tool that throws, at each point there is: it arrives as itself, and nothing is left of it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "amanda/error.h"
#include "amanda/torch.h"

namespace {

using amanda::OpContext;
using amanda::Scope;
using amanda::Values;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// ---- what is thrown, and how it arrives ----

struct Own : std::exception {
  const char* what() const noexcept override { return "boom"; }
};
struct Foreign {  // no std::exception
  std::string text;
};

using Fault = std::function<void()>;
const Fault kOwn = [] { throw Own(); };
const Fault kForeign = [] { throw Foreign{"boom"}; };

/// Type and text of what `fn` throws, and of what is nested in it.
std::string thrown_by(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Own& e) {
    return std::string("Own: ") + e.what();
  } catch (const Foreign& e) {
    return "Foreign: " + e.text;
  } catch (const std::exception& e) {
    return std::string(e.what()) + " <- " + thrown_by([&] { std::rethrow_if_nested(e); });
  }
  return "nothing";
}

constexpr const char* kCarried =
    "[backward] a routine threw what is no std::exception, and PyTorch's engine carries nothing else: throw a "
    "std::exception (what was thrown is nested in this error) <- Foreign: boom";

/// Fails, while it has a fault, at one point of sin: the analysis, the one that waits for outputs, or an action.
struct Faulty : amanda::Tool {
  enum At { kAnalysis, kLateAnalysis, kBefore, kReplace, kAfter };

  Faulty(At at, bool backward) : Tool("faulty") {
    auto analysis = [this, at, backward](OpContext& op) {
      if (backward && op.backward_op()->name != "SinBackward0") return;
      const auto fail = [this](Values&) { this->fail(); };
      const auto original = [this](Values& v) {
        this->fail();
        v.call_original();
      };
      if (at == kAnalysis || at == kLateAnalysis) this->fail();
      if (at == kBefore) backward ? op.insert_before_backward_op(fail) : op.insert_before_op(fail);
      if (at == kReplace) backward ? op.replace_backward_op(original) : op.replace_op(original);
      if (at == kAfter) backward ? op.insert_after_backward_op(fail) : op.insert_after_op(fail);
    };
    add_inst_for_op(analysis, {.backward = backward, .require_outputs = at == kLateAnalysis, .ops = {"sin"}});
  }

  void fail() {
    if (!fault) return;
    ++failures;
    fault();
  }
  void on_disable(const std::exception_ptr& error) override {
    told.push_back(thrown_by([&] { std::rethrow_exception(error); }));
  }

  Fault fault;
  int failures = 0;
  std::vector<std::string> told;  // why it was stopped
};

// ---- the program ----

/// Runs what it was given, in the backward pass, `depth` passes deep. Below 60, on a thread of the engine.
struct Deep : torch::autograd::Function<Deep> {
  static inline std::function<void()> bottom;
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x, int64_t depth) {
    ctx->saved_data["depth"] = depth;
    return x.clone();
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list gradients) {
    const int64_t depth = ctx->saved_data["depth"].toInt();
    if (depth == 0) {
      bottom();
    } else {
      c10::AutoGradMode recorded(true);
      Deep::apply(torch::ones({1}).requires_grad_(), depth - 1).backward();
    }
    return {gradients[0], torch::Tensor()};
  }
};

enum class Where { kForward, kBackward, kOtherThread, kEngineThread };

using State = std::tuple<uint64_t, uint64_t, bool, bool>;
State thread_state() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return {keys.included_.raw_repr(), keys.excluded_.raw_repr(), c10::GradMode::is_enabled(),
          c10::InferenceMode::is_enabled()};
}

class Program {
 public:
  Program() { weight.mutable_grad() = torch::ones({2}); }

  /// Forward here, backward on the chosen thread; its exception is thrown here.
  void run(Where where, Scope* scope = nullptr) {
    const torch::Tensor loss = (x * weight).sin().sum();
    if (where == Where::kEngineThread) {
      Deep::bottom = [&] { loss.backward(); };
      return Deep::apply(torch::ones({1}).requires_grad_(), 100).backward();
    }
    if (where != Where::kOtherThread) return loss.backward();
    std::exception_ptr error;
    std::thread([&] {
      std::optional<Scope::Guard> guard;
      if (scope) guard.emplace(*scope);
      const State before = thread_state();
      try {
        loss.backward();
      } catch (...) {
        error = std::current_exception();
      }
      EXPECT_EQ(thread_state(), before);
    }).join();
    if (error) std::rethrow_exception(error);
  }

  void expect_untouched() const {
    EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5)));
    EXPECT_TRUE(torch::equal(weight.grad(), torch::ones({2})));
  }
  void expect_ran() {
    EXPECT_TRUE(torch::equal(weight.grad(), 1 + x * (x * weight).cos()));
    weight.mutable_grad() = torch::ones({2});
  }

  const torch::Tensor x = torch::tensor({-1.f, 2.f});
  const torch::Tensor weight = torch::full({2}, 0.5).requires_grad_();
};

class LogLines {
 public:
  LogLines() {
    amanda::set_log_sink([this](const std::string& line) { lines.push_back(line); });
  }
  ~LogLines() {
    amanda::set_log_sink([](const std::string&) {});
  }
  std::vector<std::string> lines;
};

// ---- at each point of an operator ----

using Case = std::tuple<Where, Faulty::At>;

struct Faults : testing::TestWithParam<Case> {
  Where where() const { return std::get<Where>(GetParam()); }
  bool backward() const { return where() != Where::kForward; }
};

TEST_P(Faults, ArriveAndLeaveNothingBehind) {
  const LogLines log;
  const State outside = thread_state();
  for (const bool own : {true, false}) {
    Faulty tool(std::get<Faulty::At>(GetParam()), backward());
    Program program;
    Scope scope(tool);
    for (int repetition = 0; repetition < 2; ++repetition) {
      scope.cache_clear();  // an analysis runs until it succeeds
      auto guard = scope.enter();
      const State inside = thread_state();
      tool.fault = own ? kOwn : kForeign;
      EXPECT_EQ(thrown_by([&] { program.run(where(), &scope); }), own          ? "Own: boom"
                                                                  : backward() ? kCarried
                                                                               : "Foreign: boom");
      EXPECT_EQ(tool.failures, repetition + 1);
      EXPECT_EQ(thread_state(), inside);
      program.expect_untouched();
      tool.fault = nullptr;
      program.run(where(), &scope);
      program.expect_ran();
    }
    EXPECT_EQ(thread_state(), outside);
    program.run(where());
    program.expect_ran();
    EXPECT_TRUE(tool.told.empty());
  }
  EXPECT_TRUE(log.lines.empty());
}

TEST_P(Faults, StopTheToolWhereItIsToBeDisabled) {
  for (const bool own : {true, false}) {
    const LogLines log;
    Faulty tool(std::get<Faulty::At>(GetParam()), backward());
    tool.fault = own ? kOwn : kForeign;
    Program program;
    {
      Scope scope({&tool}, {amanda::OnError::kDisable});
      auto guard = scope.enter();
      for (int repetition = 0; repetition < 2; ++repetition) {
        program.run(where(), &scope);
        program.expect_ran();
      }
    }
    EXPECT_EQ(tool.failures, 1);
    EXPECT_EQ(tool.told, std::vector<std::string>{own ? "Own: boom" : "Foreign: boom"});
    ASSERT_EQ(log.lines.size(), 1u);
    EXPECT_TRUE(log.lines[0].starts_with("[amanda] faulty: ")) << log.lines[0];
    EXPECT_TRUE(log.lines[0].ends_with(std::string(own ? "boom" : "an exception that is no std::exception") +
                                       "; stopped for the rest of the scope: 'faulty'"))
        << log.lines[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Faults,
                         testing::Combine(testing::Values(Where::kForward, Where::kBackward, Where::kOtherThread,
                                                          Where::kEngineThread),
                                          testing::Values(Faulty::kAnalysis, Faulty::kLateAnalysis, Faulty::kBefore,
                                                          Faulty::kReplace, Faulty::kAfter)));

// ---- in what is told of scopes ----

struct Told : amanda::Tool {
  Told(std::string name, std::string& events) : Tool(std::move(name)), events_(events) {
    add_inst_for_op([this](OpContext& op) {
      op.insert_before_op([this](Values&) {
        if (on_run) on_run();
      });
    });
  }
  void on_enter(Scope&) override { tell("<", on_entering); }
  void on_exit(Scope&, const std::exception_ptr& error) override { tell(error ? "!" : ">", on_leaving); }
  void on_disable(const std::exception_ptr&) override { tell("-", on_stop); }
  void tell(const char* event, const Fault& fault) {
    events_ += name() + event;
    if (fault) fault();
  }
  std::string& events_;
  Fault on_entering, on_leaving, on_run, on_stop;
};

struct FaultyHooks : testing::TestWithParam<bool> {
  const Fault& fault = GetParam() ? kOwn : kForeign;
  const std::string arrives = GetParam() ? "Own: boom" : "Foreign: boom";
  const std::string text = GetParam() ? "boom" : "an exception that is no std::exception";
  const State outside = thread_state();
  LogLines log;
  std::string events;
  Told a{"a", events}, b{"b", events}, c{"c", events};

  void expect_outside() const {
    EXPECT_EQ(thread_state(), outside);
    EXPECT_TRUE(torch::equal(torch::ones({2}) + 1, torch::full({2}, 2)));
  }
};

TEST_P(FaultyHooks, AScopeThatCannotBeEnteredIsNot) {
  c.on_entering = b.on_leaving = fault;
  Scope scope(a, b, c);
  EXPECT_EQ(thrown_by([&] { auto guard = scope.enter(); }), arrives);
  EXPECT_EQ(events, "a<b<c<b!a!");  // each that was told of the one is told of the other
  EXPECT_EQ(log.lines, std::vector<std::string>{"[amanda] b: on_exit failed: " + text});
  expect_outside();
}

TEST_P(FaultyHooks, AScopeThatFailsOnLeavingIsLeft) {
  b.on_leaving = c.on_leaving = fault;
  Scope scope(a, b, c);
  EXPECT_EQ(thrown_by([&] { scope.leave_entry(scope.enter_entry(), nullptr); }), arrives);
  EXPECT_EQ(events, "a<b<c<c>b>a>");
  EXPECT_TRUE(log.lines.empty());
  expect_outside();
  { auto guard = scope.enter(); }  // a destructor can only log
  EXPECT_EQ(log.lines, std::vector<std::string>{"[amanda] leaving a scope failed: " + text});
  expect_outside();
}

TEST_P(FaultyHooks, AToolThatFailsOnBeingStoppedIsStopped) {
  a.on_run = a.on_stop = fault;
  {
    Scope scope({&a, &b}, {amanda::OnError::kDisable});
    auto guard = scope.enter();
    EXPECT_TRUE(torch::equal(torch::ones({2}) + 1, torch::full({2}, 2)));
  }
  EXPECT_EQ(events, "a<b<a-b>a>");
  ASSERT_EQ(log.lines.size(), 2u);
  EXPECT_EQ(log.lines[1], "[amanda] on_disable of 'a' failed: " + text);
  expect_outside();
}

INSTANTIATE_TEST_SUITE_P(Both, FaultyHooks, testing::Bool());

}  // namespace
