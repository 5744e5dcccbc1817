// The contract of graph drivers: visit, analyse, lower, run a plan at each point.
#include <amanda/reference/graph.h>

#include "trace_test.h"

namespace amanda {
namespace {

using reference::Graph;

class GraphTest : public TraceTest {
 protected:
  /// relu(a + b) * b
  GraphTest() {
    const auto a = graph.input(), b = graph.input();
    const auto sum = graph.add("add", {a, b}, "sum")[0];
    const auto positive = graph.add("relu", {sum}, "positive")[0];
    graph.output(graph.add("mul", {positive, b}, "scaled")[0]);
  }
  Array run(const Graph& graph) { return std::get<Array>(graph.run({Array{1, -9}, Array{2, 3}})[0]); }

  Graph graph;
  using Names = std::vector<std::string>;
};

TEST_F(GraphTest, AGraphRunsItsNodesInOrder) {
  EXPECT_EQ(run(graph), (Array{6, 0}));
  EXPECT_EQ(trace(), "add relu mul");
}

TEST_F(GraphTest, WithoutAScopeTheInstrumentedGraphIsTheSame) {
  EXPECT_EQ(graph.instrumented().node_names(), graph.node_names());
}

TEST_F(GraphTest, TapsAreInsertedWhereActionsAre) {
  apply({tool("a").asks({"relu"})});
  const Graph instrumented = graph.instrumented();
  EXPECT_EQ(instrumented.node_names(), (Names{"sum", "positive<", "positive", "positive>", "scaled"}));
  EXPECT_EQ(graph.node_names(), (Names{"sum", "positive", "scaled"}));
  EXPECT_EQ(trace(), "");
  EXPECT_EQ(run(instrumented), (Array{6, 0}));
  EXPECT_EQ(trace(), "add a< relu a> mul");
}

TEST_F(GraphTest, TheVanillaGraphStaysAsItIs) {
  apply({tool("a")});
  graph.instrumented();
  leave();
  EXPECT_EQ(run(graph), (Array{6, 0}));
  EXPECT_EQ(trace(), "add relu mul");
}

TEST_F(GraphTest, InAScopeRunTakesTheInstrumentedGraph) {
  apply({tool("a").asks({"relu"})});
  EXPECT_EQ(run(graph), (Array{6, 0}));
  EXPECT_EQ(trace(), "add a< relu a> mul");
}

TEST_F(GraphTest, AnalysisRunsWhileTheGraphIsVisitedAndOnlyOnce) {
  apply({tool("a").tells_analysis()});
  const Graph instrumented = graph.instrumented();
  EXPECT_EQ(trace(), "a? a? a?");
  run(instrumented);
  run(instrumented);
  graph.instrumented();
  EXPECT_EQ(trace(), "a< add a> a< relu a> a< mul a> a< add a> a< relu a> a< mul a>");
}

TEST_F(GraphTest, AnalysisSeesSymbols) {
  auto name = [](Value value) { return std::get<reference::Symbol>(reference::operand(value)).name; };
  tool("a").does([&](OpContext& op) {
    EXPECT_TRUE(op.is_symbolic());
    EXPECT_EQ(op.name_space(), "reference/1/graph");
    note(op.module_path() + "(" + name(op.input(0)) + ")");
  });
  tool("a").does([&](OpContext& op) { note("->" + name(op.output(0))); }, {.require_outputs = true});
  apply({tool("a")});
  graph.instrumented();
  EXPECT_EQ(trace(), "sum(%0) ->%2 positive(%2) ->%3 scaled(%3) ->%4");
}

TEST_F(GraphTest, EditsFlowOn) {
  const Operand ones = Array{1, 1};
  tool("a").does(
      [&](OpContext& op) {
        op.insert_before_op([&](Values& values) { values.set(0, reference::value(ones)); }, {.inputs = {"b"}});
      },
      {.ops = {"add"}});
  tool("b").does(
      [&](OpContext& op) { op.insert_after_op([&](Values& values) { values.set(0, reference::value(ones)); }); },
      {.ops = {"relu"}});
  apply({tool("a"), tool("b")});
  const Graph instrumented = graph.instrumented();
  EXPECT_EQ(instrumented.node_names(), (Names{"sum<", "sum", "positive", "positive>", "scaled"}));
  EXPECT_EQ(run(instrumented), (Array{2, 3}));
  leave();
  EXPECT_EQ(run(graph), (Array{6, 0}));
}

TEST_F(GraphTest, AReplacedNodeRunsTheReplacementBetweenItsTaps) {
  apply({tool("a").asks({"relu"}), tool("b").asks({"relu"}).replaces()});
  const Graph instrumented = graph.instrumented();
  EXPECT_EQ(instrumented.node_names(), (Names{"sum", "positive<", "positive=", "positive>", "scaled"}));
  EXPECT_EQ(run(instrumented), (Array{6, -18}));
  EXPECT_EQ(trace(), "add a< b= a> mul");
}

TEST_F(GraphTest, AReplacementMayRunTheOriginalNode) {
  tool("b").asks({"relu"}).after("a").wraps();
  apply({tool("a").asks({"relu"}).wraps(), tool("b")});
  EXPECT_EQ(run(graph.instrumented()), (Array{6, 0}));
  EXPECT_EQ(trace(), "add b( a( relu )a )b mul");
}

TEST_F(GraphTest, AnInstrumentedGraphRunsOutsideTheScopeToo) {
  apply({tool("a").asks({"relu"})});
  const Graph instrumented = graph.instrumented();
  leave();
  run(instrumented);
  EXPECT_EQ(trace(), "add a< relu a> mul");
}

TEST_F(GraphTest, WhenItsScopeIsGoneAnInstrumentedGraphIsVanilla) {
  Graph instrumented;
  {
    const auto scope = this->scope({tool("a"), tool("b").asks({"relu"}).replaces()});
    auto in = scope->enter();
    instrumented = graph.instrumented();
  }
  EXPECT_EQ(run(instrumented), (Array{6, 0}));
  EXPECT_EQ(trace(), "add relu mul");
}

TEST_F(GraphTest, ANodeIsOneOperatorWhateverIsInsideIt) {
  const auto input = graph.input();
  graph.output(graph.add("linear", {input, input, input}, "dense")[0]);
  apply({tool("a").asks({"linear"}), tool("b").asks({"matmul"})});
  const Operand square = Array({1, 1}, {2});
  const Operands results = graph.instrumented().run({Array{1}, Array{2}, square});
  EXPECT_EQ(results[1], Operand(Array({1, 1}, {6})));
  EXPECT_EQ(trace(), "add relu mul a< linear matmul add a>");
}

TEST_F(GraphTest, SeveralOutputsAreTappedTogether) {
  Graph halves;
  const auto parts = halves.add("split", {halves.input()}, "halves");
  halves.output(parts[1]);
  halves.output(parts[0]);
  const Operand nine = Array{9};
  tool("a").does([&](OpContext& op) {
    op.insert_after_op([&](Values& values) { values.set(0, reference::value(nine)); }, {.outputs = {"second"}});
  });
  apply({tool("a")});
  EXPECT_EQ(halves.instrumented().run({Array{1, 2}}), (Operands{Array{9}, Array{1}}));
}

TEST_F(GraphTest, AnExceptionInATapIsTheToolsOwn) {
  apply({tool("a").asks({"relu"}).fails_at(">")});
  const Graph instrumented = graph.instrumented();
  EXPECT_EQ(error_of<std::runtime_error>([&] { run(instrumented); }), "boom");
  EXPECT_EQ(reference::routine_mode(), std::nullopt);
  tool("a").fails_at("");
  trace();
  run(instrumented);
  EXPECT_EQ(trace(), "add a< relu a> mul");
}

TEST_F(GraphTest, AToolThatIsDisabledFallsSilentInTheGraph) {
  apply({tool("a").asks({"relu"}), tool("b").asks({"relu"}).fails_at("<")}, OnError::kDisable);
  const Graph instrumented = graph.instrumented();
  run(instrumented);
  run(instrumented);
  EXPECT_EQ(trace(), "add a< b< relu a> mul add a< relu a> mul");
  EXPECT_EQ(log().size(), 1u);
}

TEST_F(GraphTest, ConflictsAreFoundWhileTheGraphIsVisited) {
  apply({tool("a").replaces(), tool("b").replaces()});
  EXPECT_EQ(error_of([&] { graph.instrumented(); }),
            "[plan] 'a' and 'b' both replace ref::add in sum; let one depend on the other: b.depends_on(a)");
}

TEST_F(GraphTest, GradientsAreOperatorsBehindTheirForwardOperators) {
  Graph square;
  const auto x = square.input();
  const auto y = square.add("mul", {x, x}, "square")[0];
  square.output(square.gradients(y, {x})[0]);
  tool("a").does([&](OpContext& op) {
    note(op.op().name + "?");
    op.insert_before_backward_op([&](Values&) { note("a'<"); });
    op.insert_after_backward_op([&](Values&) { note("a'>"); });
  });
  apply({tool("a")});
  EXPECT_EQ(square.instrumented().node_names(),
            (Names{"square", "ones", "square'<", "square'", "square'>", "sum", "gradient"}));
  EXPECT_EQ(square.run({Array{3}}), (Operands{Array{6}}));
  EXPECT_EQ(trace(), "mul? mul a'< MulBackward a'>");
}

TEST_F(GraphTest, WhereNoGradientFlowsItIsZero) {
  Graph sum;
  const auto x = sum.input(), y = sum.input();
  sum.output(sum.gradients(sum.add("sum", {x}, "sum")[0], {y})[0]);
  EXPECT_EQ(sum.run({Array{3}, Array{1, 2}}), (Operands{Array{0, 0}}));
}

TEST_F(GraphTest, NoGradientFlowsThroughALoop) {
  Graph body, outer;
  body.output(body.add("neg", {body.input()}, "step")[0]);
  const auto x = outer.input();
  const auto y = outer.add_loop(2, {x}, body, "loop")[0];
  EXPECT_EQ(error_of<std::invalid_argument>([&] { outer.gradients(y, {x}); }),
            "[graph] no gradient flows through 'loop'");
}

TEST_F(GraphTest, ABodyIsTakenAsItIs) {
  Graph body, outer;
  body.output(body.add("neg", {body.input()}, "step")[0]);
  outer.output(outer.add_loop(2, {outer.input()}, body, "loop")[0]);
  body.add("neg", {0}, "later");
  EXPECT_EQ(outer.run({Array{3}}), (Operands{Array{3}}));
  EXPECT_EQ(trace(), "neg neg");
}

TEST_F(GraphTest, InPlaceOperatorsDoNotBelongInAGraph) {
  EXPECT_EQ(error_of<std::invalid_argument>([&] { graph.add("relu_", {0}, "r"); }),
            "[graph] relu_ works in place; a wire has one value");
}

}  // namespace
}  // namespace amanda
