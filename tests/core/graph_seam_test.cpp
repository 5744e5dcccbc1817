// The graph half of the seam in C++: what sanitizers should see of each regime, and what only graphs have. The
// driver-independent rules are in tests/conformance.
#include <amanda/amanda.h>
#include <amanda/driver/engine.h>
#include <amanda/reference/array.h>
#include <amanda/reference/call.h>
#include <amanda/reference/gradient.h>
#include <amanda/reference/graph.h>
#include <amanda/reference/operand.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "toy_driver.h"

namespace amanda {
namespace {

using reference::Array;
using reference::Graph;
using reference::Operand;
using reference::Operands;

Array times(const Array& a, const Array& b) {
  std::vector<double> data;
  for (size_t i = 0; i < a.size(); ++i) data.push_back(a.data()[i] * b.data()[i]);
  return Array(a.shape(), data);
}
Array zeros(const Array& a) { return Array(a.shape(), std::vector<double>(a.size(), 0.0)); }

const Array kX{1, -2, 3}, kW{2, 1, -1}, kB{0.5, 4, 1}, kV{3, 1, 2}, kMask{0, 1, 1};

struct Result {
  Array loss, grad_w, grad_v;
  bool operator==(const Result&) const = default;
  friend void PrintTo(const Result& r, std::ostream* out) {
    for (const Array* array : {&r.loss, &r.grad_w, &r.grad_v}) {
      for (double x : array->data()) *out << x << " ";
      *out << "| ";
    }
  }
};

/// loss = sum(relu(x * w + b) * v), and its gradients with respect to w and v.
struct Regime {
  virtual ~Regime() = default;
  virtual Result step() = 0;
};

struct Eager final : Regime {
  Result step() override {
    using reference::call;
    using reference::Place;
    auto at = [](const char* place, const char* op, Operands in) {
      Place here(place);
      return call(op, std::move(in))[0];
    };
    const Array w = reference::leaf(kW.copy()), v = reference::leaf(kV.copy());
    const Operand h = at("first", "mul", {kX, w}), s = at("shift", "add", {h, kB}), r = at("positive", "relu", {s}),
                  m = at("second", "mul", {r, v}), loss = at("total", "sum", {m});
    reference::backward(std::get<Array>(loss), Array{1});
    auto grad = [](const Array& leaf) { return reference::gradient(leaf).value_or(zeros(leaf)); };
    return {std::get<Array>(loss).copy(), grad(w), grad(v)};
  }
};

struct InGraph final : Regime {
  InGraph() {
    const auto x = graph.input(), w = graph.input(), b = graph.input(), v = graph.input();
    const auto h = graph.add("mul", {x, w}, "first")[0];
    const auto s = graph.add("add", {h, b}, "shift")[0];
    const auto r = graph.add("relu", {s}, "positive")[0];
    const auto loss = graph.add("sum", {graph.add("mul", {r, v}, "second")[0]}, "total")[0];
    graph.output(loss);
    for (auto wire : graph.gradients(loss, {w, v})) graph.output(wire);
  }
  Operands inputs() const { return {kX, kW, kB, kV}; }
  Result of(const Operands& out) const {
    return {std::get<Array>(out[0]), std::get<Array>(out[1]), std::get<Array>(out[2])};
  }
  Result step() override { return of(graph.run(inputs())); }
  Graph graph;
};

/// relu(x * (w * mask) + b) * v, by hand; the gradient of w masked.
Result masked_by_hand() {
  const Array w = times(kW, kMask);
  Array h = times(kX, w), r = h, grad_v = h, grad_w = h;
  double loss = 0;
  std::vector<double> rs, gw;
  for (size_t i = 0; i < 3; ++i) {
    const double s = h.data()[i] + kB.data()[i], relu = std::max(s, 0.0);
    loss += relu * kV.data()[i];
    rs.push_back(relu);
    gw.push_back(s > 0 ? kV.data()[i] * kX.data()[i] * kMask.data()[i] : 0.0);
  }
  return {Array{loss}, Array(kX.shape(), gw), Array(kX.shape(), rs)};
}

struct Looks : Tool {
  explicit Looks(RoutineKind kind) : Tool("looks") {
    add_inst_for_op([this, kind](OpContext& op) {
      ++analyses;
      op.insert_before_op([this](Values& values) { look(values); }, {.kind = kind});
      op.insert_after_op([this](Values& values) { look(values); }, {.kind = kind});
    });
    add_inst_for_op(
        [this, kind](OpContext& op) {
          ++analyses;
          op.insert_before_backward_op([this](Values& values) { look(values); }, {.kind = kind});
          op.insert_after_backward_op([this](Values& values) { look(values); }, {.kind = kind});
        },
        {.backward = true});
  }
  void look(Values& values) {
    for (size_t i = 0; i < values.size(); ++i) seen += values[i].ref != nullptr;
  }
  std::atomic<int> analyses{0}, seen{0};
};

struct Masks : Tool {
  Masks() : Tool("masks") {
    InstOptions mul;
    mul.ops = {"mul"};
    add_inst_for_op(
        [this](OpContext& op) {
          ++analyses;
          if (op.module_path() != "first") return;
          op.insert_before_op([this](Values& values) { apply(values); },
                              {.inputs = {"b"}, .kind = RoutineKind::kTransform});
        },
        mul);
    mul.backward = true;
    add_inst_for_op(
        [this](OpContext& op) {
          if (op.backward_op()->name != "MulBackward") return;  // eager: the nodes of leaves, too
          ++analyses;
          if (op.op_id() != first()) return;
          op.insert_after_backward_op([this](Values& values) { apply(values); }, {.grad_inputs = {1}});
        },
        mul);
  }
  static OpId first() {
    static const OpId id = [] {
      OpId found = 0;
      Tool probe;
      probe.add_inst_for_op([&](OpContext& op) { found = op.op_id(); });
      Scope scope(probe);
      auto in = scope.enter();
      reference::Place here("first");
      reference::call("mul", {kX, kX});
      return found;
    }();
    return id;
  }
  void apply(Values& values) {
    if (!values[0].ref) return;
    const Operand masked = times(reference::array(values[0]), kMask);
    values.set(0, reference::value(masked));
  }
  std::atomic<int> analyses{0};
};

struct Prepare final : testing::Environment {  // no analysis could ask for it: its own operators are not observed
  void SetUp() override { ASSERT_NE(Masks::first(), 0u); }
};
[[maybe_unused]] testing::Environment* const prepare = testing::AddGlobalTestEnvironment(new Prepare);

template <class R>
class Conformance : public testing::Test {
 protected:
  R regime;
  Result vanilla = regime.step();
};
using Regimes = testing::Types<Eager, InGraph>;
TYPED_TEST_SUITE(Conformance, Regimes);

TYPED_TEST(Conformance, LookOnlyChangesNothing) {
  for (RoutineKind kind : {RoutineKind::kUnknown, RoutineKind::kObserve}) {
    Looks tool(kind);
    Scope scope(tool);
    auto in = scope.enter();
    EXPECT_EQ(this->regime.step(), this->vanilla);
    EXPECT_GT(tool.seen, 20);
  }
  EXPECT_EQ(this->regime.step(), this->vanilla);
}

TYPED_TEST(Conformance, AMaskForwardAndBackwardAsByHand) {
  Masks tool;
  Scope scope(tool);
  auto in = scope.enter();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(this->regime.step(), masked_by_hand());
  EXPECT_EQ(tool.analyses, 4);
}

struct Boom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TYPED_TEST(Conformance, AnErrorIsTheRoutinesOwn) {
  Tool tool("fails");
  bool fail = true;
  tool.add_inst_for_op(
      [&](OpContext& op) {
        op.insert_after_backward_op([&](Values&) {
          if (fail) throw Boom("mine");
        });
      },
      {.ops = {"relu"}});
  {
    Scope scope(tool);
    auto in = scope.enter();
    EXPECT_THROW(this->regime.step(), Boom);
    EXPECT_EQ(reference::routine_mode(), std::nullopt);
    fail = false;
    EXPECT_EQ(this->regime.step(), this->vanilla);
    fail = true;
  }
  Scope scope({&tool}, {.on_error = OnError::kDisable});
  auto in = scope.enter();
  EXPECT_EQ(this->regime.step(), this->vanilla);
  EXPECT_EQ(this->regime.step(), this->vanilla);
}

TYPED_TEST(Conformance, FourThreads) {
  Masks tool;
  Scope scope(tool);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        if (!(this->regime.step() == this->vanilla)) ++wrong;
        auto in = scope.enter();
        if (!(this->regime.step() == masked_by_hand())) ++wrong;
        Switch off = disabled();
        if (!(this->regime.step() == this->vanilla)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(tool.analyses, 4);
}

TYPED_TEST(Conformance, WhatARunSharesIsOneExecutions) {
  Tool tool("times");
  int same = 0;
  struct Start {
    bool set = false;
  };
  tool.add_inst_for_op(
      [&](OpContext& op) {
        op.insert_before_op([](Values& values) { EXPECT_FALSE(std::exchange(values.run<Start>().set, true)); });
        op.insert_after_op([&](Values& values) { same += values.run<Start>().set; });
      },
      {.ops = {"relu"}});
  Scope scope(tool);
  auto in = scope.enter();
  this->regime.step();
  this->regime.step();
  EXPECT_EQ(same, 2);
}

// ---- graphs only ----------------------------------------------------------------------------------------------------

class GraphSeam : public testing::Test {
 protected:
  InGraph regime;
  Result vanilla = regime.step();
};

TEST_F(GraphSeam, OffAndOnAgainBuildsNothing) {
  Masks tool;
  Scope scope(tool);
  for (int i = 0; i < 5; ++i) {
    {
      auto in = scope.enter();
      EXPECT_EQ(regime.step(), masked_by_hand());
      Switch off = disabled();
      EXPECT_EQ(regime.step(), vanilla);
    }
    EXPECT_EQ(regime.step(), vanilla);
  }
  EXPECT_EQ(regime.graph.cache_info().builds, 1u);
  EXPECT_EQ(regime.graph.cache_info().hits, 4u);
  EXPECT_EQ(tool.analyses, 4);
  Looks other(RoutineKind::kObserve);
  Scope second(other);
  for (int i = 0; i < 3; ++i) {
    auto in = second.enter();
    regime.step();
    auto both = scope.enter();
    regime.step();
  }
  EXPECT_EQ(regime.graph.cache_info().builds, 3u);
  EXPECT_EQ(tool.analyses, 4);  // opening a scope inside another analyses nothing of the other's
}

TEST_F(GraphSeam, AToolThatChangesHasANewArtifact) {
  Looks tool(RoutineKind::kObserve);
  Scope scope(tool);
  auto in = scope.enter();
  regime.step();
  const int analyses = tool.analyses;
  int relus = 0;
  tool.add_inst_for_op([&](OpContext& op) { op.insert_before_op([&](Values&) { ++relus; }); }, {.ops = {"relu"}});
  regime.step();
  EXPECT_EQ(relus, 1);
  EXPECT_EQ(tool.analyses, analyses);
  EXPECT_EQ(regime.graph.cache_info().builds, 2u);
  EXPECT_EQ(regime.graph.cache_info().size, 1u);
  scope.cache_clear();
  regime.step();
  EXPECT_EQ(tool.analyses, 2 * analyses);
  EXPECT_EQ(regime.graph.cache_info().size, 1u);
  Switch uncached = cache_disabled();
  regime.step();
  regime.step();
  EXPECT_EQ(tool.analyses, 4 * analyses);
}

TEST_F(GraphSeam, ARemovedActionFallsSilentInTheArtifact) {
  Action action;
  int runs = 0;
  Tool tool;
  tool.add_inst_for_op([&](OpContext& op) { action = op.insert_before_op([&](Values&) { ++runs; }); },
                       {.ops = {"relu"}});
  Scope scope(tool);
  auto in = scope.enter();
  regime.step();
  action.remove();
  regime.step();
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(regime.graph.cache_info().builds, 1u);
  Tool traced;
  traced.add_inst_for_op(
      [&](OpContext& op) { action = op.insert_before_op([&](Values&) { ++runs; }, {.kind = RoutineKind::kTraceable}); },
      {.ops = {"relu"}});
  Scope other(traced);
  auto deeper = other.enter();
  regime.step();
  action.remove();  // it may be in the graph for good: another graph is needed
  regime.step();
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(regime.graph.cache_info().builds, 3u);
}

TEST_F(GraphSeam, AnArtifactThatOutlivesItsScopeIsVanilla) {
  Graph kept;
  ArtifactPtr artifact;
  ToolsetPtr toolset;
  {
    auto tool = std::make_unique<Masks>();
    auto scope = std::make_unique<Scope>(*tool);
    {
      auto in = scope->enter();
      kept = regime.graph.instrumented();
      artifact = regime.graph.artifact();
    }
    EXPECT_EQ(regime.of(kept.run(regime.inputs())), masked_by_hand());  // scope object there, not open
    scope.reset();
    tool.reset();
  }
  EXPECT_EQ(regime.of(kept.run(regime.inputs())), vanilla);
  EXPECT_TRUE(artifact->lowered);
}

TEST_F(GraphSeam, ADyingScopeUnderRunningThreads) {
  for (int round = 0; round < 30; ++round) {
    Masks tool;  // outlives what runs: a tool's own contract
    auto scope = std::make_unique<Scope>(tool);
    Graph kept;
    {
      auto in = scope->enter();
      kept = regime.graph.instrumented();
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 20; ++i) {
          const Result got = regime.of(kept.run(regime.inputs()));
          if (!(got.loss == vanilla.loss) && !(got.loss == masked_by_hand().loss)) ++wrong;
        }
      });
    }
    scope.reset();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(regime.of(kept.run(regime.inputs())), vanilla);
  }
}

TEST_F(GraphSeam, WhatWasAnalysedInEagerHoldsInTheGraph) {
  Masks tool;
  Scope scope(tool);
  auto in = scope.enter();
  EXPECT_EQ(Eager().step(), masked_by_hand());
  EXPECT_EQ(tool.analyses, 4);
  EXPECT_EQ(regime.step(), masked_by_hand());
  EXPECT_EQ(tool.analyses, 4);
}

TEST_F(GraphSeam, WhatSymbolsDecidedDoesNotHoldForValues) {
  Tool tool;
  int edits = 0;
  std::string regimes;
  tool.add_inst_for_op(
      [&](OpContext& op) {
        regimes += op.is_symbolic() ? "s" : "v";
        if (!op.is_symbolic()) op.insert_before_op([&](Values&) { ++edits; });  // from what it saw of the values
      },
      {.ops = {"relu"}});
  Scope scope(tool);
  auto in = scope.enter();
  regime.step();
  EXPECT_EQ(edits, 0);
  Eager().step();
  Eager().step();
  regime.step();  // its artifact is made
  EXPECT_EQ(edits, 2);
  EXPECT_EQ(regimes, "sv");
  InGraph().step();  // another graph of the same place
  EXPECT_EQ(edits, 3);
  EXPECT_EQ(regimes, "sv");
}

TEST_F(GraphSeam, WhatCannotBeDoneIsRefusedAtAnalysis) {
  Graph graph;
  graph.output(graph.add("flatten", {graph.add("neg", {graph.input()}, "n")[0]}, "view")[0]);
  const Operand other = Array{7, 7};
  int runs = 0;
  auto tool_of = [&](RoutineKind kind, bool edits) {
    auto tool = std::make_unique<Tool>("editor");
    tool->add_inst_for_op(
        [&, kind, edits](OpContext& op) {
          op.insert_after_op(
              [&, edits](Values& values) {
                ++runs;
                if (edits) values.set(0, reference::value(other));
              },
              {.kind = kind});
        },
        {.ops = {"flatten"}});
    return tool;
  };
  auto message = [&](Tool& tool, ScopeOptions options = {}) -> std::string {
    Scope scope({&tool}, options);
    auto in = scope.enter();
    try {
      EXPECT_EQ(graph.run({Array{1, 2}}), (Operands{Array{-1, -2}}));
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  auto transform = tool_of(RoutineKind::kTransform, true);
  EXPECT_EQ(message(*transform),
            "[context] editor: insert_after_op on ref::flatten in view: its result is a view, and another value would "
            "share no "
            "data; say allow_view if that will do");
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(message(*transform, {.on_error = OnError::kDisable}), "");
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(message(*tool_of(RoutineKind::kUnknown, false)), "");  // looking is always allowed
  EXPECT_EQ(message(*tool_of(RoutineKind::kObserve, false)), "");
  EXPECT_EQ(runs, 2);
  EXPECT_NE(message(*tool_of(RoutineKind::kUnknown, true)).find("its result is a view"), std::string::npos);
  EXPECT_NE(message(*tool_of(RoutineKind::kObserve, true)).find("to look only"), std::string::npos);
}

TEST_F(GraphSeam, BodiesOfLoopsAndConditionals) {
  Graph body, yes, no;
  const auto a = body.input(), b = body.input();
  body.output(body.add("add", {a, b}, "step")[0]);
  body.output(b);
  yes.output(yes.add("neg", {yes.input()}, "flip")[0]);
  no.output(no.add("relu", {no.input()}, "clip")[0]);
  Graph graph;
  const auto x = graph.input(), c = graph.input();
  const auto sum = graph.add_loop(3, {x, x}, body, "loop")[0];
  graph.output(graph.add_if(c, {sum}, yes, no, "choice")[0]);
  EXPECT_EQ(graph.run({Array{1, 2}, Array{1}}), (Operands{Array{-4, -8}}));

  std::multiset<std::string> analysed;
  std::map<std::string, int> runs;
  Tool tool;
  tool.add_inst_for_op([&](OpContext& op) {
    analysed.insert(op.module_path());
    op.insert_before_op([&, name = op.op().name](Values& values) {
      ++runs[name];
      if (name != "add") return;
      const Operand twice = times(reference::array(values[1]), Array{2, 2});
      values.set(1, reference::value(twice));
    });
  });
  Scope scope(tool);
  auto in = scope.enter();
  EXPECT_EQ(graph.run({Array{1, 2}, Array{1}}), (Operands{Array{-7, -14}}));
  EXPECT_EQ(graph.run({Array{1, 2}, Array{0}}), (Operands{Array{7, 14}}));
  EXPECT_EQ(analysed, (std::multiset<std::string>{"choice.clip", "choice.flip", "loop.step"}));
  EXPECT_EQ(runs, (std::map<std::string, int>{{"add", 6}, {"neg", 1}, {"relu", 1}}));
}

TEST_F(GraphSeam, CoverageSaysWhatNoToolIsShown) {
  Graph graph;
  const auto x = graph.input();
  const auto y = graph.add("mul", {x, x}, "square")[0];
  graph.output(graph.gradients(y, {x})[0]);
  Looks tool(RoutineKind::kObserve);
  Scope scope(tool);
  auto in = scope.enter();
  EXPECT_EQ(graph.run({Array{3}}), (Operands{Array{6}}));
  std::vector<std::string> unseen;
  for (const Artifact::Unseen& one : graph.artifact()->unseen) unseen.push_back(one.what + ": " + one.reason);
  const std::string reason = ": it joins gradients, which is no operator in eager either";
  EXPECT_EQ(unseen, (std::vector<std::string>{"ones" + reason, "sum" + reason, "gradient" + reason}));
}

// ---- another driver: ids of its own ---------------------------------------------------------------------------------

TEST(Toy, TwoDriversDoNotShareARecord) {
  Tool tool;
  int analyses = 0;
  tool.add_inst_for_op([&](OpContext&) { ++analyses; });
  Scope scope(tool);
  auto in = scope.enter();
  Eager().step();
  EXPECT_EQ(analyses, 5);
  ToyGraph graph;
  graph.ops.resize(1);
  graph.ops[0].name = Masks::first();  // the same number, in another numbering
  Engine::instrument(*Engine::toolset(*Toy::here), graph);
  EXPECT_EQ(analyses, 6);
}

TEST(Toy, TapsAreKnownByNumber) {
  ToyGraph graph;
  graph.ops.resize(1);
  graph.ops[0].name = 7;
  double other = 5;
  Tool tool;
  tool.add_inst_for_op([&](OpContext& op) {
    auto sets = [&](Values& values) { values.set(0, {&other}); };
    op.insert_before_op(sets, {.inputs = {"a"}, .kind = RoutineKind::kTraceable});
    op.insert_before_op([](Values&) {}, {.inputs = Positions::none()});
    op.insert_before_op(sets, {.inputs = {"b"}, .kind = RoutineKind::kTransform});
    op.insert_before_op(sets, {.inputs = {"a"}, .kind = RoutineKind::kTransform});
  });
  Scope scope(tool);
  ArtifactPtr artifact;
  ToolsetPtr toolset;
  {
    auto in = scope.enter();
    toolset = Engine::toolset(*Toy::here);
    EXPECT_EQ(toolset, Engine::toolset(*Toy::here));
  }
  artifact = Engine::instrument(*toolset, graph);  // the scope was left meanwhile
  ASSERT_EQ(graph.taps.size(), 3u);                // traceable; looks; two that edit
  EXPECT_EQ(graph.traced, 1);
  EXPECT_EQ(graph.taps[1]->kind(), RoutineKind::kObserve);
  EXPECT_FALSE(graph.taps[1]->selects(0));
  EXPECT_TRUE(graph.taps[2]->selects(0) && graph.taps[2]->selects(1));
  const uint64_t id = graph.taps[2]->id();
  EXPECT_EQ(Engine::tap(id), graph.taps[2]);
  // Where the thread knows its scopes, nothing acts outside them.
  graph.ops[0].edited = {};
  Tool nobody;
  Scope elsewhere(nobody);
  {
    auto in = elsewhere.enter();
    Engine::run(*graph.taps[2], graph.ops[0], Toy::here);
    EXPECT_EQ(graph.ops[0].edited.ref, nullptr);
    Engine::run(*graph.taps[2], graph.ops[0]);
    EXPECT_EQ(graph.ops[0].edited.ref, &other);
  }
  graph.taps.clear();
  artifact.reset();
  EXPECT_EQ(Engine::tap(id), nullptr);
}

}  // namespace
}  // namespace amanda
