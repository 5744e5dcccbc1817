// The Flops tool without a framework: on the reference driver, with operators that have PyTorch's names.
#include <amanda/reference/call.h>
#include <amanda/reference/operator.h>
#include <flops/flops.h>
#include <gtest/gtest.h>

namespace amanda::tools {
namespace {

using reference::Array;
using reference::Operand;
using reference::Operands;

Array of_shape(size_t rows, size_t columns) { return Array({rows, columns}, std::vector<double>(rows * columns)); }

class FlopsTest : public ::testing::Test {
 protected:
  FlopsTest() {
    static const bool defined = [] {
      auto first = [](const Operands& in) -> Operands { return {in[0]}; };
      reference::define({.info = {"aten", "mm", "", {"self", "mat2"}, {"result"}, ""}, .kernel = first});
      reference::define({.info = {"aten", "bmm", "", {"self", "mat2"}, {"result"}, ""}, .kernel = first});
      return true;
    }();
    static_cast<void>(defined);
  }
  static void count(Flops& flops, const std::string& op, const Operand& a, const Operand& b) {
    Scope scope(flops);
    auto in = scope.enter();
    reference::call(op, {a, b});
  }
};

TEST_F(FlopsTest, CountsByTheSizesThatTheDriverTells) {
  Flops flops;
  count(flops, "mm", of_shape(2, 3), of_shape(3, 4));
  EXPECT_EQ(flops.counts()->total(), 2 * 2 * 3 * 4);
  EXPECT_EQ(flops.counts()->by_operator(), (std::map<std::string, int64_t>{{"aten::mm", 48}}));
  EXPECT_TRUE(flops.counts()->uncounted().empty());
}

TEST_F(FlopsTest, WhatIsNoMatrixIsListed) {
  Flops flops;
  count(flops, "mm", Array{1, 2}, of_shape(2, 4));
  count(flops, "bmm", 2.0, std::vector<Array>{of_shape(2, 4)});
  EXPECT_EQ(flops.counts()->total(), 0);
  EXPECT_EQ(flops.counts()->uncounted(), (std::map<std::string, int64_t>{{"aten::mm", 1}, {"aten::bmm", 1}}));
}

TEST_F(FlopsTest, OperatorsWithoutAFormulaAreListed) {
  Flops flops;
  count(flops, "add", of_shape(2, 2), of_shape(2, 2));
  EXPECT_EQ(flops.counts()->uncounted(), (std::map<std::string, int64_t>{{"ref::add", 1}}));
}

}  // namespace
}  // namespace amanda::tools
