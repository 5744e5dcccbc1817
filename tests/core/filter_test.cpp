// Which operator names a pattern matches.
#include "amanda/unmatched.h"
#include "trace_test.h"

namespace amanda {
namespace {

bool matches(const std::string& pattern, const std::string& ns, const std::string& name, const std::string& overload) {
  return OpFilter({pattern}).matches({ns, name, overload, {}, {}, ""});
}

TEST(FilterTest, APlainNameMatchesAnyNamespaceAndOverload) {
  EXPECT_TRUE(matches("add", "ref", "add", ""));
  EXPECT_TRUE(matches("add", "other", "add", "Tensor"));
  EXPECT_FALSE(matches("add", "ref", "addmm", ""));
}

TEST(FilterTest, ANameDoesNotMatchItsInPlaceForm) {
  EXPECT_FALSE(matches("relu", "ref", "relu_", ""));
  EXPECT_TRUE(matches("relu_", "ref", "relu_", ""));
}

TEST(FilterTest, ANamespaceIsMatchedWhenGiven) {
  EXPECT_TRUE(matches("ref::add", "ref", "add", "scalar"));
  EXPECT_FALSE(matches("ref::add", "other", "add", ""));
  EXPECT_TRUE(matches("*::add", "other", "add", ""));
}

TEST(FilterTest, AnOverloadIsMatchedWhenGiven) {
  EXPECT_TRUE(matches("add.Tensor", "ref", "add", "Tensor"));
  EXPECT_FALSE(matches("add.Tensor", "ref", "add", "Scalar"));
  EXPECT_FALSE(matches("add.Tensor", "ref", "add", ""));
  EXPECT_TRUE(matches("ref::add.T*", "ref", "add", "Tensor"));
  EXPECT_TRUE(matches("add.", "ref", "add", ""));
}

TEST(FilterTest, GlobsMatch) {
  EXPECT_TRUE(matches("conv*", "ref", "conv2d", ""));
  EXPECT_TRUE(matches("conv?d", "ref", "conv2d", ""));
  EXPECT_TRUE(matches("conv[12]d", "ref", "conv2d", ""));
  EXPECT_FALSE(matches("conv[13]d", "ref", "conv2d", ""));
  EXPECT_TRUE(matches("*", "ref", "anything", "at.all"));
}

TEST(FilterTest, NoPatternMatchesNothingAndNoFilterEverything) {
  EXPECT_FALSE(OpFilter(std::vector<std::string>{}).matches({"ref", "add", "", {}, {}, ""}));
  EXPECT_TRUE(OpFilter().matches({"ref", "add", "", {}, {}, ""}));
  EXPECT_FALSE(OpFilter::on_demand().matches({"ref", "add", "", {}, {}, ""}));
}

TEST(FilterTest, AnEmptyPatternIsRefused) {
  EXPECT_EQ(error_of<std::invalid_argument>([] { OpFilter({""}); }),
            "[tool] an operator pattern is empty; give a name such as \"conv2d\"");
}

TEST(FilterTest, ANarrowedFilterMatchesWhatAllOfThemMatch) {
  const OpInfo conv1d{"ref", "conv1d", "", {}, {}, ""}, conv2d{"ref", "conv2d", "", {}, {}, ""};
  const OpFilter both = OpFilter({"conv*", "add"}).narrowed(OpFilter({"*2d", "mul"}));
  EXPECT_TRUE(both.matches(conv2d));
  EXPECT_FALSE(both.matches(conv1d));
  EXPECT_FALSE(both.matches({"ref", "add", "", {}, {}, ""}));
  EXPECT_FALSE(both.narrowed(OpFilter({"other::*"})).matches(conv2d));
  EXPECT_EQ(OpFilter().narrowed(both).patterns(), both.patterns());
  EXPECT_TRUE(both.narrowed(OpFilter()).matches(conv2d));
  EXPECT_TRUE(OpFilter::on_demand().narrowed(both).is_on_demand());
}

bool contains(const std::string& pattern, const std::string& path) { return ModuleFilter({pattern}).matches(path); }

TEST(ModuleFilterTest, APathStandsForTheModuleAndWhatIsInsideIt) {
  EXPECT_TRUE(contains("encoder.layer.1", "encoder.layer.1"));
  EXPECT_TRUE(contains("encoder.layer.1", "encoder.layer.1.attention.query"));
  EXPECT_FALSE(contains("encoder.layer.1", "encoder.layer.10"));
  EXPECT_FALSE(contains("encoder.layer.1", "encoder.layer"));
  EXPECT_FALSE(contains("layer", "encoder.layer"));
  EXPECT_FALSE(contains("encoder", ""));
}

TEST(ModuleFilterTest, GlobsAlsoMatchDots) {
  EXPECT_TRUE(contains("encoder.*.attention", "encoder.layer.3.attention.query"));
  EXPECT_TRUE(contains("*.attention", "encoder.attention"));
  EXPECT_FALSE(contains("*.attention", "attention"));
  EXPECT_TRUE(contains("layer.[12]", "layer.2.mlp"));
  EXPECT_FALSE(contains("layer.?", "layer.10"));
  EXPECT_TRUE(contains("*", ""));
}

TEST(ModuleFilterTest, ANarrowedFilterMatchesWhatAllOfThemMatch) {
  const ModuleFilter both = ModuleFilter({"encoder"}).narrowed(ModuleFilter({"*.attention", "decoder"}));
  EXPECT_TRUE(both.matches("encoder.0.attention"));
  EXPECT_FALSE(both.matches("encoder.0"));
  EXPECT_FALSE(both.matches("decoder"));
  EXPECT_FALSE(both.narrowed(ModuleFilter({"encoder.1"})).matches("encoder.0.attention"));
  EXPECT_TRUE(ModuleFilter().narrowed(both).matches("encoder.0.attention"));
  EXPECT_FALSE(both.narrowed(ModuleFilter()).matches_all());
}

TEST(ModuleFilterTest, SeveralPatternsAndNone) {
  EXPECT_TRUE(ModuleFilter({"decoder", "encoder"}).matches("encoder.0"));
  EXPECT_TRUE(ModuleFilter().matches(""));
  EXPECT_TRUE(ModuleFilter().matches_all());
  EXPECT_EQ(error_of<std::invalid_argument>([] { ModuleFilter(std::vector<std::string>{}); }),
            "[tool] modules= has no pattern, and would match nothing; leave it out to ask in all modules");
}

TEST(ModuleFilterTest, WhatIsNoPathIsRefused) {
  EXPECT_EQ(error_of<std::invalid_argument>([] { ModuleFilter({"encoder..0"}); }),
            "[tool] modules=\"encoder..0\" is no module path: there is no name before or after a dot; give one such as "
            "\"encoder.layer.0\", or \"encoder.*.attention\" with shell globs");
}

using FilteredCallTest = TraceTest;

TEST_F(FilteredCallTest, OperatorsElsewhereAreNotAnalysed) {
  tool("a").does([&](OpContext& op) { note(op.module_path() + "?"); }, {.ops = {"mul"}, .modules = {"encoder"}});
  apply({tool("a")});
  for (const char* part : {"encoder", "decoder", "encoder"}) {
    const reference::Place outer(part), inner("layer");
    call("mul");
  }
  EXPECT_EQ(trace(), "encoder.layer? mul mul mul");
}

TEST_F(FilteredCallTest, ALogLineTellsOfAFilterThatMatchedNothing) {
  tool("a").does([](OpContext&) {}, {.ops = {"neg", "relu*"}});
  tool("b").does([](OpContext&) {}, {.ops = {"mul"}, .modules = {"encoder"}});
  tool("c").does([](OpContext&) {}, {.ops = {"mul"}}).does([](OpContext&) {}, {.ops = {"neg"}, .optional = true});
  auto made = scope({tool("a"), tool("b"), tool("c")});
  for (int i = 0; i < 2; ++i) {
    const auto inside = made->enter();
    call("mul");
  }
  EXPECT_EQ(log(),
            (std::vector<std::string>{
                "[scope] modules={\"encoder\"} of tool 'b' matched nothing: the operators of ops={\"mul\"} ran "
                "outside modules only; in a LibTorch program, modules have paths while there is an "
                "amanda::pytorch::ModuleNames of the model",
                "[scope] ops={\"neg\", \"relu*\"} of tool 'a' matched nothing that ran; operators of other types "
                "that the scope's tools saw, by places: ref::mul 1"}));
}

TEST(UnmatchedTest, TheLogLineHintsAtOtherOperators) {
  const std::string how_to = "to list what runs: a tool without .ops sees all operators";
  const std::pair<OpFilter, std::string> cases[] = {
      {{"linear"},
       "ops={\"linear\"} of tool 'a' matched nothing that ran; " + how_to +
           "; torch::nn::Linear and torch::nn::functional::linear call addmm or matmul: .ops = "
           "amanda::pytorch::linear_like() asks for all of them"},
      {{"aten::linear", "addmm", "matmul"},
       "ops={\"aten::linear\", \"addmm\", \"matmul\"} of tool 'a' matched nothing that ran; " + how_to},
      {{"sigmoid.out"},
       "ops={\"sigmoid.out\"} of tool 'a' matched nothing that ran; " + how_to + "; in place it is sigmoid_"},
      {{"softmax", "b", "c", "d", "e", "f"},
       "ops={\"softmax\", \"b\", \"c\", \"d\", \"e\", and 1 more} of tool 'a' matched nothing that ran; " + how_to +
           "; attention may be scaled_dot_product_attention, which has its softmax inside"},
  };
  const Tool asking("a");
  for (const auto& [ops, line] : cases) EXPECT_EQ(describe(Unmatched{&asking, 0, {.ops = ops}}), "[scope] " + line);
}

TEST_F(FilteredCallTest, TheRoutinesOfAToolAreOneLogLine) {
  tool("a").does([](OpContext&) {}, {.ops = {"neg"}}).does([](OpContext&) {}, {.ops = {"relu", "neg"}});
  tool("b").does([](OpContext&) {}, {.modules = {"encoder.0"}});
  tool("c").does([](OpContext&) {}, {.ops = {"mul"}});
  auto made = scope({tool("a"), tool("b"), tool("c")});
  {
    const auto inside = made->enter();
    const reference::Place place("decoder");
    call("mul");
  }
  EXPECT_EQ(log(), (std::vector<std::string>{
                       "[scope] modules={\"encoder.0\"} of tool 'b' matched nothing: operators ran in \"decoder\"",
                       "[scope] ops={\"neg\", \"relu\"} of tool 'a' matched nothing that ran; operators of other types "
                       "that the scope's tools saw, by places: ref::mul 1"}));
}

TEST_F(FilteredCallTest, OptionalFiltersAreMissedOnlyIfTheToolsThatItDependsOnHaveNoWorkEither) {
  tool("a").does([](OpContext&) {}, {.ops = {"neg"}, .optional = true}).after("b");
  tool("b").does([](OpContext&) {}, {.ops = {"relu"}, .optional = true});
  tool("c").does([](OpContext&) {}, {.ops = {"neg"}, .optional = true}).after("d");
  tool("d").does([](OpContext&) {}, {.ops = {"mul"}});
  auto made = scope({tool("a"), tool("c")});
  {
    const auto inside = made->enter();
    call("mul");
  }
  EXPECT_EQ(log(), std::vector<std::string>{"[scope] ops={\"neg\"} of tool 'a' matched nothing that ran; operators of "
                                            "other types that the scope's tools saw, by places: ref::mul 1"});
}

TEST_F(FilteredCallTest, NothingIsLoggedWhereNothingRanOrAnExceptionCame) {
  auto made = scope({tool("a").asks({"neg"}), tool("b")});
  { const auto inside = made->enter(); }
  try {
    const auto inside = made->enter();
    call("mul");
    throw std::runtime_error("the program's");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(log(), std::vector<std::string>{});
}

TEST_F(FilteredCallTest, OverloadsOfOneNameAreToldApart) {
  apply({tool("any").asks({"mul"}), tool("one").asks({"mul.scalar"})});
  call("mul");
  call("mul.scalar");
  EXPECT_EQ(trace(), "any< mul any> any< one< mul any> one>");
}

TEST_F(FilteredCallTest, AnInPlaceOperatorIsAnOperatorOfItsOwn) {
  apply({tool("a").asks({"relu"}), tool("b").asks({"ref::relu_"})});
  call("relu");
  call("relu_");
  EXPECT_EQ(trace(), "a< relu a> b< relu_ b>");
}

}  // namespace
}  // namespace amanda
