// The formulas of TensorFlow's operators against sums that are written out, and what is counted without a graph.
#include <amanda/reference/call.h>
#include <amanda/reference/operator.h>
#include <flops/bilinear_runs.h>
#include <flops/flops.h>
#include <flops/tensorflow_formulas.h>
#include <flops/word_formulas.h>
#include <gtest/gtest.h>

namespace amanda::tools {
namespace {

using reference::Array;
using reference::Operands;

using Shape = std::optional<IntVector>;  // empty: not known

std::optional<int64_t> flops_of(const std::string& name, const Shape& a, const Shape& b, const Shape& output,
                                const std::string& equation = "") {
  const auto op = find_tensorflow_operator(name);
  return op ? op->flops({a, b, output}, equation) : std::nullopt;
}

// 2 images of 8x6 with 4 channels, stride 2, "SAME": each of the 4x3 places of 10 channels is a sum of 5x3x4 products.
constexpr int64_t kProducts = 2 * (4 * 3 * 10) * (5 * 3 * 4);

TEST(TensorflowFormulas, AConvolutionIsTheSameInBothLayouts) {
  const IntVector filter{5, 3, 4, 10};
  EXPECT_EQ(convolution_of({IntVector{2, 8, 6, 4}, filter, IntVector{2, 4, 3, 10}}, "HWIO"), 2 * kProducts);
  EXPECT_EQ(convolution_of({IntVector{2, 4, 8, 6}, filter, IntVector{2, 10, 4, 3}}, "HWIO"), 2 * kProducts);
}

TEST(TensorflowFormulas, ItsGradientsTakeAsMany) {
  const IntVector image{2, 8, 6, 4}, filter{5, 3, 4, 10}, grad{2, 4, 3, 10};
  EXPECT_EQ(convolution_of({grad, filter, image}, "HWOI", true), 2 * kProducts);
  EXPECT_EQ(flops_of("Conv2DBackpropFilter", image, grad, filter), 2 * kProducts);
}

TEST(TensorflowFormulas, WithGroupsAnOutputChannelSeesItsGroupAlone) {
  // 2 groups: the filter has 2 of 4 channels.
  EXPECT_EQ(convolution_of({IntVector{2, 8, 6, 4}, IntVector{5, 3, 2, 10}, IntVector{2, 4, 3, 10}}, "HWIO"), kProducts);
  EXPECT_EQ(flops_of("Conv2DBackpropFilter", IntVector{2, 8, 6, 4}, IntVector{2, 4, 3, 10}, IntVector{5, 3, 2, 10}),
            kProducts);
}

TEST(TensorflowFormulas, DepthwiseConvolutions) {
  // 4 channels with 3 filters of 5x3 each.
  const IntVector image{2, 8, 6, 4}, filter{5, 3, 4, 3}, grad{2, 4, 3, 12};
  const int64_t flops = 2 * (2 * 4 * 3 * 12) * (5 * 3);
  EXPECT_EQ(convolution_of({image, filter, grad}, "HWIM"), flops);
  EXPECT_EQ(flops_of("DepthwiseConv2dNativeBackpropInput", filter, grad, image), flops);
  EXPECT_EQ(flops_of("DepthwiseConv2dNativeBackpropFilter", image, grad, filter), flops);
}

TEST(TensorflowFormulas, ConvolutionsOfVolumes) {
  const IntVector image{1, 4, 5, 6, 2}, filter{2, 2, 3, 2, 7}, grad{1, 3, 4, 4, 7};
  const int64_t flops = 2 * (3 * 4 * 4 * 7) * (2 * 2 * 3 * 2);
  EXPECT_EQ(convolution_of({image, filter, grad}, "DHWIO"), flops);
  EXPECT_EQ(flops_of("Conv3DBackpropInput", filter, grad, image), flops);
  EXPECT_EQ(flops_of("Conv3DBackpropFilterV2", image, grad, filter), flops);
}

TEST(TensorflowFormulas, VectorizedLayoutsAreNotCovered) {
  EXPECT_EQ(convolution_of({IntVector{2, 1, 8, 6, 4}, IntVector{8, 1, 3, 3, 4}, IntVector{2, 2, 8, 6, 4}}, "HWIO"),
            std::nullopt);
}

TEST(TensorflowFormulas, AProductIsTheSameTransposed) {
  for (const Shape& a : {Shape(IntVector{3, 4}), Shape(IntVector{4, 3})}) {
    for (const Shape& b : {Shape(IntVector{4, 5}), Shape(IntVector{5, 4})}) {
      EXPECT_EQ(matmul_of({a, b, IntVector{3, 5}}), 2 * 3 * 4 * 5);
    }
  }
}

TEST(TensorflowFormulas, BatchesOfAProductBroadcast) {
  EXPECT_EQ(matmul_of({IntVector{7, 1, 3, 4}, IntVector{6, 4, 5}, IntVector{7, 6, 3, 5}}), 2 * 7 * 6 * 3 * 4 * 5);
  EXPECT_EQ(matmul_of({IntVector{4, 3}, IntVector{6, 4, 5}, IntVector{6, 3, 5}}), 2 * 6 * 3 * 4 * 5);
  EXPECT_EQ(matmul_of({IntVector{2, 0, 4}, IntVector{2, 4, 5}, IntVector{2, 0, 5}}), 0);
}

TEST(TensorflowFormulas, Einsum) {
  const auto einsum = [](const std::string& equation, const IntVector& a, const IntVector& b) {
    return flops_of("Einsum", a, b, std::nullopt, equation);
  };
  EXPECT_EQ(einsum("bij,bjk->bik", IntVector{2, 3, 4}, IntVector{2, 4, 5}), 2 * 2 * 3 * 4 * 5);
  EXPECT_EQ(einsum("aecd,abcd->acbe", IntVector{2, 3, 4, 5}, IntVector{2, 6, 4, 5}),
            2 * (2 * 4) * 3 * 6 * 5);  // attention in Keras
  EXPECT_EQ(einsum("i,j->ij", IntVector{3}, IntVector{4}), 2 * 3 * 4);
  EXPECT_EQ(einsum("ijs,jk->ik", IntVector{3, 4, 9}, IntVector{4, 5}), 2 * 3 * 4 * 5);  // s is summed over first
  EXPECT_EQ(einsum("ii,ij->j", IntVector{3, 3}, IntVector{3, 4}), 2 * 3 * 4);
  EXPECT_EQ(einsum("...ij,jk->...ik", IntVector{7, 6, 3, 4}, IntVector{4, 5}), 2 * 7 * 6 * 3 * 4 * 5);
  EXPECT_EQ(einsum("...ij,...jk->...ik", IntVector{7, 1, 3, 4}, IntVector{6, 4, 5}), 2 * 7 * 6 * 3 * 4 * 5);
}

TEST(TensorflowFormulas, AnEinsumThatIsNoProductIsNotCovered) {
  EXPECT_EQ(flops_of("Einsum", IntVector{3, 4}, std::nullopt, IntVector{4, 3}, "ij->ji"), std::nullopt);
  EXPECT_EQ(flops_of("Einsum", IntVector{3, 4}, IntVector{4, 5}, std::nullopt, "ij,jk,kl->il"), std::nullopt);
  EXPECT_EQ(flops_of("Einsum", IntVector{3, 4, 9}, IntVector{4, 5}, std::nullopt, "ij,jk->ik"), std::nullopt);
  EXPECT_EQ(flops_of("Einsum", IntVector{3, 4}, IntVector{4, 5}, IntVector{3, 5}, ""), std::nullopt);
}

TEST(TensorflowFormulas, TwoOfThreeShapesAreEnoughForAProduct) {
  const Shape a = IntVector{7, 3, 4}, b = IntVector{7, 4, 5}, output = IntVector{7, 3, 5};
  const int64_t flops = 2 * 7 * 3 * 4 * 5;
  EXPECT_EQ(matmul_of({a, {}, output}), flops);
  EXPECT_EQ(matmul_of({{}, b, output}), flops);
  EXPECT_EQ(matmul_of({{}, {}, output}), std::nullopt);
  EXPECT_EQ(flops_of("Einsum", a, {}, output, "bij,bjk->bik"), flops);
  EXPECT_EQ(flops_of("Einsum", {}, b, output, "bij,bjk->bik"), flops);
  EXPECT_EQ(flops_of("Einsum", {}, b, output, "...ij,...jk->...ik"), flops);
  EXPECT_EQ(flops_of("Einsum", {}, {}, output, "bij,bjk->bik"), std::nullopt);
  EXPECT_EQ(flops_of("Einsum", {}, b, {}, "...ij,...jk->...ik"), std::nullopt);
}

TEST(TensorflowFormulas, UnknownSizesAreNotGuessed) {
  const Shape batch = IntVector{kUnknown, 3, 4}, output = IntVector{7, 3, 5}, some = IntVector{kUnknown, 3, 5};
  EXPECT_EQ(matmul_of({batch, {}, output}), 2 * 7 * 3 * 4 * 5);  // the batch's size is that of the result
  EXPECT_EQ(matmul_of({batch, IntVector{4, 5}, some}), std::nullopt);
  EXPECT_EQ(flops_of("Einsum", batch, IntVector{4, 5}, some, "bij,jk->bik"), std::nullopt);
  EXPECT_EQ(flops_of("Einsum", batch, IntVector{4, 5}, output, "bij,jk->bik"), 2 * 7 * 3 * 4 * 5);
  EXPECT_EQ(convolution_of({{}, IntVector{3, 3, 4, 8}, IntVector{kUnknown, 5, 5, 8}}, "HWIO"), std::nullopt);
  EXPECT_EQ(convolution_of({{}, IntVector{3, 3, kUnknown, 8}, IntVector{2, 5, 5, 8}}, "HWIO"), std::nullopt);
  EXPECT_EQ(convolution_of({{}, {}, IntVector{2, 5, 5, 8}}, "HWIO"), std::nullopt);
}

class BilinearRunsTest : public ::testing::Test {
 protected:
  void note(const IntVector& a, const IntVector& b, int64_t flops) { runs_.note({a, b, IntVector{1, 5}}, flops); }
  void count(const BilinearShapes& shapes) {
    runs_.count(shapes, counts_.tally("op", "", true), counts_.uncounted_tally("op", true));
  }
  int64_t unknown() { return counts_.uncounted().contains("op") ? counts_.uncounted().at("op") : 0; }

  FlopCounts counts_;
  BilinearRuns runs_;
};

TEST_F(BilinearRunsTest, AreFoundByWhatABackwardOperatorShows) {
  note({1, 3}, {3, 5}, 30);
  note({1, 4}, {4, 5}, 40);
  count({.a = IntVector{1, 3}});
  EXPECT_EQ(counts_.total(), 30);
  count({.b = IntVector{4, 5}, .output = IntVector{1, 5}});
  EXPECT_EQ(counts_.total(), 30 + 40);
  EXPECT_EQ(unknown(), 0);
  count({.output = IntVector{1, 5}});  // they differ
  EXPECT_EQ(counts_.total(), 30 + 40);
  EXPECT_EQ(unknown(), 1);
}

TEST_F(BilinearRunsTest, MayBeNotedLater) {
  count({.a = IntVector{1, 4}});
  EXPECT_EQ(unknown(), 1);
  note({1, 3}, {3, 5}, 30);
  EXPECT_EQ(counts_.total(), 0);
  note({1, 4}, {4, 5}, 40);
  EXPECT_EQ(counts_.total(), 40);
  EXPECT_EQ(unknown(), 0);
  note({1, 4}, {4, 5}, 40);
  EXPECT_EQ(counts_.total(), 40);
}

TEST(TensorflowFlops, CountsWhatRunsWithoutAGraph) {
  reference::define(
      {.info = {"tensorflow", "MatMul", "", {"a", "b"}, {"product"}, ""}, .kernel = [](const Operands&) -> Operands {
         return {Array({3, 5}, std::vector<double>(15))};
       }});
  Flops flops({.operators = {{"tensorflow::MatMul", FlopsFormula::kProduct, "a", "b"}}});
  {
    Scope scope(flops);
    auto in = scope.enter();
    const Array a({4, 3}, std::vector<double>(12)), b({4, 5}, std::vector<double>(20));
    reference::call("MatMul", {a, b});
    reference::call("MatMul", {Array{1, 2}, Array{1, 2}});
  }
  EXPECT_EQ(flops.counts()->by_operator(), (std::map<std::string, int64_t>{{"tensorflow::MatMul", 2 * 3 * 4 * 5}}));
  EXPECT_EQ(flops.counts()->uncounted(), (std::map<std::string, int64_t>{{"tensorflow::MatMul", 1}}));
}

}  // namespace
}  // namespace amanda::tools
