// The PyTorch driver without Python: what C++ programs get.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <iostream>
#include <sstream>
#include <thread>

#include "amanda/error.h"
#include "amanda/log.h"
#include "amanda/torch.h"

namespace {

using amanda::OpContext;
using amanda::Values;
namespace at_values = amanda::pytorch;

/// A tool made of one analysis routine.
struct Analyse : amanda::Tool {
  explicit Analyse(std::function<void(OpContext&)> analysis, amanda::InstOptions options = {},
                   std::string name = "tool")
      : Tool(std::move(name)) {
    add_inst_for_op(std::move(analysis), std::move(options));
  }
};

/// Lists the operators it sees, in the order they run.
struct Recorder : amanda::Tool {
  std::string seen;
  explicit Recorder(amanda::InstOptions options = {}) : Tool("recorder") {
    add_inst_for_op(
        [this](OpContext& op) {
          op.insert_before_op([this](Values& v) { seen += (seen.empty() ? "" : " ") + v.op().name; });
        },
        std::move(options));
  }
};

template <class Fn>
void in_scope(amanda::Tool& tool, const Fn& fn) {
  amanda::Scope scope(tool);
  auto guard = scope.enter();
  fn();
}

TEST(Driver, SeesTheOutermostCalls) {
  Recorder tool;
  const auto x = torch::ones({2, 3}), w = torch::ones({4, 3});
  in_scope(tool, [&] { torch::relu(torch::linear(x, w) + 1); });
  EXPECT_EQ(tool.seen, "linear add relu");
}

TEST(Driver, FilterLooksIntoCompositeCalls) {
  Recorder tool({.ops = {"matmul", "mm", "addmm"}});
  const auto x = torch::ones({2, 3}), w = torch::ones({4, 3});
  in_scope(tool, [&] { torch::linear(x, w); });
  EXPECT_EQ(tool.seen, "matmul");  // mm is inside it
}

TEST(Driver, LinearLikeHasTheCallsOfModulesInCpp) {
  Recorder tool({.ops = amanda::pytorch::linear_like()});
  torch::nn::Linear biased(3, 4), plain(torch::nn::LinearOptions(3, 4).bias(false));
  in_scope(tool, [&] {
    biased(torch::ones({2, 3}));
    plain(torch::ones({2, 3}));
    torch::linear(torch::ones({2, 3}), plain->weight);
  });
  EXPECT_EQ(tool.seen, "addmm matmul linear");
}

TEST(Driver, NestedShowsInnerCalls) {
  Recorder tool({.ops = {"linear", "matmul", "mm"}, .nested = true});
  const auto x = torch::ones({2, 3}), w = torch::ones({4, 3});
  in_scope(tool, [&] { torch::linear(x, w); });
  EXPECT_EQ(tool.seen, "linear matmul mm");
}

TEST(Driver, TheFirstOperatorEndsTheWaitForOne) {
  std::vector<std::string> lines;
  amanda::set_log_sink([&](const std::string& line) { lines.push_back(line); });
  Recorder tool({.ops = {"cosh"}});
  amanda::Scope scope(tool);
  {
    auto guard = scope.enter();
    EXPECT_TRUE(at::hasCallbacks());
  }
  EXPECT_FALSE(at::hasCallbacks());
  EXPECT_TRUE(lines.empty());
  for (int i = 0; i < 2; ++i) {
    auto guard = scope.enter();
    EXPECT_EQ(at::hasCallbacks(), i == 0);
    torch::ones({1});
    EXPECT_FALSE(at::hasCallbacks());
  }
  EXPECT_EQ(lines, std::vector<std::string>{"[scope] ops={\"cosh\"} of tool 'recorder' matched nothing that ran; to "
                                            "list what runs: a tool without .ops sees all operators"});
  amanda::set_log_sink([](const std::string& line) { std::cerr << line << "\n"; });
}

TEST(Driver, AFilterThatMatchesNoLinearLayerNamesTheGroupThatDoes) {
  std::vector<std::string> lines;
  amanda::set_log_sink([&](const std::string& line) { lines.push_back(line); });
  Recorder asking({.ops = {"linear"}}), inside({.ops = {"relu"}, .modules = {"encoder"}}), other({.ops = {"addmm"}});
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::ReLU());
  {
    amanda::Scope scope({&asking, &inside, &other});
    auto guard = scope.enter();
    net->forward(torch::ones({2, 3}));
  }
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "[scope] modules={\"encoder\"} of tool 'recorder' matched nothing: the operators of "
                       "ops={\"relu\"} ran outside modules only; in a LibTorch program, modules have paths while there "
                       "is an amanda::pytorch::ModuleNames of the model",
                       "[scope] ops={\"linear\"} of tool 'recorder' matched nothing that ran; operators of other types "
                       "that the scope's tools saw, by places: addmm 1; torch::nn::Linear and "
                       "torch::nn::functional::linear call addmm or matmul: .ops = amanda::pytorch::linear_like() asks "
                       "for all of them"}));
  amanda::set_log_sink([](const std::string& line) { std::cerr << line << "\n"; });
}

TEST(Driver, NothingIsSeenOutsideTheScopeOrOnOtherThreads) {
  Recorder tool;
  in_scope(tool, [&] { std::thread([] { torch::ones({1}) + 1; }).join(); });
  torch::ones({1}) + 1;
  EXPECT_EQ(tool.seen, "");
}

TEST(Driver, EditedInputsTrainStraightThrough) {
  const auto x = torch::randn({5, 3}), mask = (torch::rand({4, 3}) > 0.5).to(torch::kFloat);
  auto w = torch::randn({4, 3}).requires_grad_();
  Analyse tool(
      [&](OpContext& op) {
        op.insert_before_op([&](Values& v) { at_values::set(v, 0, at_values::tensor(v[0]) * mask); },
                            {.inputs = {"weight"}});
      },
      {.ops = {"linear"}});
  torch::Tensor y;
  in_scope(tool, [&] { y = torch::linear(x, w); });
  EXPECT_TRUE(torch::equal(y, torch::linear(x, w * mask)));
  y.sum().backward();
  EXPECT_TRUE(torch::equal(w.grad(), torch::ones({5, 4}).t().mm(x)));
}

TEST(Driver, EditedInPlaceResultsReachTheirTensorAndTrain) {
  auto w = torch::randn({6}).requires_grad_();
  Analyse tool(
      [](OpContext& op) { op.insert_after_op([](Values& v) { at_values::set(v, 0, at_values::tensor(v[0]) * 0.5); }); },
      {.ops = {"relu_"}});
  for (int step = 0; step < 2; ++step) {
    w.mutable_grad().reset();
    auto y = w * 1;
    in_scope(tool, [&] { torch::relu_(y); });
    EXPECT_TRUE(torch::equal(y, torch::relu(w) * 0.5));
    y.sum().backward();
    EXPECT_TRUE(torch::equal(w.grad(), (w > 0).to(torch::kFloat)));
  }
}

TEST(Driver, EditedOutResultsReachTheirTensor) {
  Analyse tool(
      [](OpContext& op) { op.insert_after_op([](Values& v) { at_values::set(v, 0, at_values::tensor(v[0]) + 1); }); },
      {.ops = {"add.out"}});
  auto out = torch::zeros({2});
  in_scope(tool, [&] { torch::add_out(out, torch::ones({2}), torch::ones({2})); });
  EXPECT_TRUE(torch::equal(out, torch::full({2}, 3.f)));
}

TEST(Driver, ReplacementIsTheOperator) {
  auto x = torch::randn({3}).requires_grad_();
  Analyse tool(
      [](OpContext& op) { op.replace_op([](Values& v) { at_values::set_result(v, 0, at_values::tensor(v[0]) * 3); }); },
      {.ops = {"relu"}});
  torch::Tensor y;
  in_scope(tool, [&] { y = torch::relu(x); });
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 3.f)));
}

TEST(Driver, CallOriginalRunsWhatIsReplaced) {
  Analyse tool(
      [](OpContext& op) {
        op.replace_op([](Values& v) {
          v.call_original();
          at_values::set_result(v, 0, at_values::tensor(v.result(0)) + 1);
        });
      },
      {.ops = {"relu"}});
  in_scope(tool, [&] {
    EXPECT_TRUE(torch::equal(torch::relu(torch::tensor({-1.f, 2.f})), torch::tensor({1.f, 3.f})));
  });
}

TEST(Driver, AReplacementWithoutAResultIsAnError) {
  Analyse tool([](OpContext& op) { op.replace_op([](Values&) {}); }, {.ops = {"relu"}});
  amanda::Scope scope(tool);
  auto in = scope.enter();
  try {
    torch::relu(torch::ones({1}));
    FAIL();
  } catch (const amanda::Error& e) {
    EXPECT_STREQ(e.what(), "[action] tool: a C++ routine replacing aten::relu: it set no result 0");
  }
}

TEST(Driver, AValueOfAnotherTypeIsAnError) {
  Analyse tool([](OpContext& op) { op.insert_after_op([](Values& v) { at_values::set(v, 0, 1.5); }); },
               {.ops = {"relu"}}, "half");
  amanda::Scope scope(tool);
  auto in = scope.enter();
  try {
    torch::relu(torch::ones({1}));
    FAIL();
  } catch (const amanda::Error& e) {
    EXPECT_STREQ(e.what(),
                 "[action] half: a C++ routine after aten::relu: output 0: got Double where Tensor is needed");
  }
}

TEST(Driver, ExceptionsOfRoutinesArriveAsThemselves) {
  struct Mine : std::exception {};
  Analyse tool([](OpContext& op) { op.insert_before_op([](Values&) { throw Mine(); }); }, {.ops = {"relu"}});
  in_scope(tool, [] { EXPECT_THROW(torch::relu(torch::ones({1})), Mine); });
}

/// Has a routine before each `add` that promises to call no operator, and runs `code`.
std::unique_ptr<amanda::Tool> promises_no_operator(std::function<void(Values&)> code,
                                                   const amanda::OpFilter& ops = {}) {
  return std::make_unique<Analyse>(
      [code = std::move(code)](OpContext& op) {
        if (op.op().name != "add") return;
        op.insert_before_op(code, {.kind = amanda::RoutineKind::kObserve, .with_operators = false});
      },
      amanda::InstOptions{.ops = ops}, "lean");
}

TEST(Driver, ARoutineThatPromisedToCallNoOperatorRunsInTheStateOfTheProgram) {
  std::vector<bool> modes;
  const auto note = [&](Values&) { modes.push_back(torch::GradMode::is_enabled()); };
  const auto x = torch::ones({2}).requires_grad_();
  for (const amanda::OpFilter& ops : {amanda::OpFilter(), amanda::OpFilter({"add"})}) {
    const auto tool = promises_no_operator(note, ops);
    in_scope(*tool, [&] {
      EXPECT_TRUE((x + x).requires_grad());
      torch::NoGradGuard no_grad;
      x + x;
    });
  }
  EXPECT_EQ(modes, (std::vector<bool>{true, false, true, false}));
}

TEST(Driver, NoToolSeesWhatARoutineCallsThatBreaksThatPromise) {
  const auto x = torch::ones({2}).requires_grad_();
  for (const amanda::OpFilter& ops : {amanda::OpFilter(), amanda::OpFilter({"add"})}) {
    const auto tool = promises_no_operator(
        [](Values& v) {
          at_values::tensor(v[0]) * 2;
          torch::erfinv(at_values::tensor(v[0]));  // it has no typed kernel
        },
        ops);
    Recorder other(ops.patterns().empty() ? amanda::InstOptions{} : amanda::InstOptions{.ops = {"mul", "erfinv"}});
    in_scope(*tool, [&] {
      in_scope(other, [&] {
        const auto y = x + x;
        y.sum().backward();
        EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 2.f)));
        x.mutable_grad().reset();
        torch::erfinv(y);
      });
    });
    EXPECT_EQ(other.seen.substr(0, other.seen.find(' ')), ops.patterns().empty() ? "add" : "erfinv");
    EXPECT_EQ(other.seen.find("mul"), std::string::npos) << other.seen;
  }
}

TEST(Driver, WhatARoutineWithThatPromiseThrowsLeavesTheThreadAsItWas) {
  struct Mine : std::exception {};
  const auto tool = promises_no_operator([](Values&) { throw Mine(); });
  Recorder other;
  const auto x = torch::ones({2}).requires_grad_();
  amanda::Scope scope({tool.get(), &other});
  auto in = scope.enter();
  EXPECT_THROW(x + x, Mine);
  EXPECT_TRUE((x * x).requires_grad());
  EXPECT_EQ(other.seen, "mul");
}

TEST(Driver, AToolWithThatPromiseIsDisabledInIsolation) {
  struct Lean : amanda::Tool {
    bool recorded = true;
    Lean() : Tool("lean") {
      add_inst_for_op([](OpContext& op) {
        op.insert_before_op([](Values&) { throw std::runtime_error("mine"); },
                            {.kind = amanda::RoutineKind::kObserve, .with_operators = false});
      });
    }
    void on_disable(const std::exception_ptr&) override {
      recorded = torch::exp(torch::ones({1}).requires_grad_()).requires_grad();
    }
  };
  amanda::set_log_sink([](const std::string&) {});
  Lean tool;
  Recorder other;
  const auto x = torch::ones({2}).requires_grad_();
  amanda::Scope scope({&tool, &other}, {amanda::OnError::kDisable});
  auto in = scope.enter();
  EXPECT_TRUE((x + x).requires_grad());
  EXPECT_FALSE(tool.recorded);
  EXPECT_EQ(other.seen, "add");
  amanda::set_log_sink([](const std::string& line) { std::cerr << line << "\n"; });
}

TEST(Driver, InferenceModeOutsideTheScopeChangesNothing) {
  Recorder tool;
  c10::InferenceMode inference;
  in_scope(tool, [&] { torch::relu(torch::ones({1})); });
  EXPECT_EQ(tool.seen, "ones relu");
}

TEST(Driver, AKeyBitRestoredAfterTheScopeIsHarmless) {
  Recorder tool;
  amanda::Scope scope(tool);
  auto in = std::make_unique<amanda::Scope::Guard>(scope);
  {
    c10::InferenceMode inference;  // its end puts the thread's key bits back as they are now
    in.reset();
  }
  EXPECT_TRUE(torch::equal(torch::relu(torch::tensor({-1.f})), torch::zeros({1})));
  EXPECT_EQ(tool.seen, "");
}

TEST(Driver, AReplacementThatFailsAfterTheOperatorRanRaisesUnderDisableToo) {
  amanda::set_log_sink([](const std::string&) {});
  Analyse tool(
      [](OpContext& op) {
        op.replace_op([](Values& v) {
          v.call_original();
          throw std::runtime_error("late");
        });
      },
      {.ops = {"neg"}});
  amanda::Scope scope({&tool}, {amanda::OnError::kDisable});
  auto in = scope.enter();
  EXPECT_THROW(torch::neg(torch::ones({1})), std::runtime_error);
  EXPECT_TRUE(torch::equal(torch::neg(torch::ones({1})), -torch::ones({1})));
}

}  // namespace
