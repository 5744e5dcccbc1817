// Operands in no framework's terms: the integers of a description, and what the reference driver says of its values.
#include <amanda/reference/gradient.h>

#include "trace_test.h"

namespace amanda {
namespace {

TEST(IntVector, HoldsFewAndManyInOrder) {
  IntVector few{2, 3}, many;
  for (int64_t i = 0; i < 20; ++i) {
    many.push_back(i);
    ASSERT_EQ(many.size(), static_cast<size_t>(i + 1));
    ASSERT_EQ(many[0], 0);
    ASSERT_EQ(many[many.size() - 1], i);
  }
  EXPECT_EQ(std::vector<int64_t>(few.begin(), few.end()), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(IntVector(many), many);
  EXPECT_NE(few, many);
  EXPECT_NE(IntVector(), IntVector{0});
  EXPECT_TRUE(IntVector().empty());
}

class DescribeTest : public TraceTest {
 protected:
  /// What an analysis of `op` is told of its first input.
  ValueInfo described(const std::string& op, Operands inputs) {
    ValueInfo info;
    tool("a").does([&](OpContext& context) { info = context.backend().describe(context.input(0)); });
    apply({tool("a")});
    reference::call(op, std::move(inputs));
    return info;
  }
};

TEST_F(DescribeTest, AnArrayIsATensor) {
  const ValueInfo info = described("relu", {Array({2, 3}, {1, 2, 3, 4, 5, 6})});
  EXPECT_EQ(info.kind, ValueKind::kTensor);
  EXPECT_EQ(info.dtype, "float64");
  EXPECT_EQ(info.sizes, (IntVector{2, 3}));
  EXPECT_EQ(info.device, "cpu");
  EXPECT_EQ(info.bytes, 48);
  EXPECT_FALSE(info.requires_grad);
  EXPECT_TRUE(info.integers.empty());
  EXPECT_TRUE(info.elements.empty());
}

TEST_F(DescribeTest, ALeafRequiresAGradient) {
  EXPECT_TRUE(described("relu", {reference::leaf(Array{1, 2})}).requires_grad);
}

TEST_F(DescribeTest, AListHasElements) {
  const ValueInfo info = described("concat", {std::vector<Array>{Array{1, 2}, reference::leaf(Array{3})}});
  EXPECT_EQ(info.kind, ValueKind::kTensors);
  EXPECT_EQ(info.bytes, 24);
  EXPECT_TRUE(info.requires_grad);
  EXPECT_FALSE(info.sizes.has_value());
  ASSERT_EQ(info.elements.size(), 2u);
  EXPECT_EQ(info.elements[0].sizes, IntVector{2});
  EXPECT_FALSE(info.elements[0].requires_grad);
  EXPECT_EQ(info.elements[1].sizes, IntVector{1});
  EXPECT_TRUE(info.elements[1].requires_grad);
}

TEST_F(DescribeTest, NumbersAndSymbols) {
  Backend* backend = nullptr;
  tool("a").does([&](OpContext& context) { backend = &context.backend(); });
  apply({tool("a")});
  reference::call("relu", {Array{1}});
  const Operand number = 2.5, symbol = reference::Symbol{"%0"};
  EXPECT_EQ(backend->describe(reference::value(number)).kind, ValueKind::kNumber);
  EXPECT_EQ(backend->describe(reference::value(number)).dtype, "float64");
  EXPECT_EQ(backend->describe(reference::value(symbol)).kind, ValueKind::kOther);
  EXPECT_FALSE(backend->describe(reference::value(symbol)).sizes.has_value());
}

TEST_F(DescribeTest, ANullValueIsNone) {
  tool("a").does([&](OpContext& context) {
    const ValueInfo info = context.backend().describe({});
    EXPECT_EQ(info.kind, ValueKind::kNone);
    EXPECT_EQ(info.bytes, 0);
    note("asked");
  });
  apply({tool("a")});
  reference::call("relu", {Array{1}});
  EXPECT_EQ(trace(), "asked relu");
}

}  // namespace
}  // namespace amanda
