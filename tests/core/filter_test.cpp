// Which operator names a pattern matches.
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

using FilteredCallTest = TraceTest;

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
